"""Scores of single pairs as FlexAttention wants them, one function for each kind of bias.

Each function gets the captured numbers and a `Pair`, and returns the number to add to the score.
Indices may be numbers or tensors that broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ntk_alibi.torch.devices.captured import Form, Numbers

#: A function of a pair of a query and a key: score, batch row, head, query and key to score.
ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]

#: A function of batch row, head, query and key, which says whether the query sees the key.
MaskMod = Callable[[Any, Any, Any, Any], Any]


class Pair(NamedTuple):
    """A query and a key.

    Attributes:
        batch, head, row, column: indices.
        query, key: positions.
    """

    batch: Any
    head: Any
    row: Any
    column: Any
    query: Any
    key: Any

    @property
    def distance(self) -> Any:
        """The integer distance, positive for keys behind the query."""
        return self.query - self.key


def at(numbers: torch.Tensor, *indices: Any) -> Any:
    """Return the numbers at indices; axes of one number are the same for all indices."""
    places = zip(indices, numbers.shape, strict=True)
    return numbers[tuple(index if size > 1 else 0 for index, size in places)]


def _one_side(numbers: Numbers, pair: Pair) -> Any:
    """Return -left d; keys ahead are hidden by the mask."""
    left = at(numbers["left"], pair.batch, pair.head, pair.row)
    # An infinite slope hides keys behind; its product with 0 would be NaN.
    return -torch.where(pair.distance > 0, left, 0.0) * pair.distance


def _two_sides(numbers: Numbers, pair: Pair) -> Any:
    right = at(numbers["right"], pair.batch, pair.head, pair.row)
    return _one_side(numbers, pair) + torch.where(pair.distance < 0, right, 0.0) * pair.distance


def _bent(numbers: Numbers, pair: Pair, side: str, distance: Any) -> Any:
    """Return the bias of one side with a knee, for distances of 0 and more."""
    slope = at(numbers[side], pair.batch, pair.head, pair.row)
    far_slope = at(numbers[f"far_{side}"], pair.batch, pair.head, pair.row)
    near = torch.minimum(distance, numbers["knee"])
    hidden = torch.isinf(slope)
    bias = -torch.where(hidden, 0.0, slope) * near - far_slope * (distance - near)
    return torch.where(hidden & (distance > 0), -torch.inf, bias)


def _one_bent_side(numbers: Numbers, pair: Pair) -> Any:
    return _bent(numbers, pair, "left", pair.distance.clamp(min=0))


def _two_bent_sides(numbers: Numbers, pair: Pair) -> Any:
    ahead = _bent(numbers, pair, "right", (-pair.distance).clamp(min=0))
    return _one_bent_side(numbers, pair) + ahead


def _table(numbers: Numbers, pair: Pair) -> Any:
    table = numbers["table"]
    place = (pair.distance - numbers["table_begin"]).clamp(0, table.shape[1] - 1)
    return at(table, pair.head, place)


def _sums(numbers: Numbers, pair: Pair) -> Any:
    """Return differences of sums whose float64 numbers were split in two float32 numbers."""
    row, column = (pair.batch, pair.head, pair.row), (pair.batch, pair.head, pair.column)
    sums = at(numbers["row_sums"], *row) - at(numbers["column_sums"], *column)
    return sums + (at(numbers["row_rests"], *row) - at(numbers["column_rests"], *column))


def _dense(numbers: Numbers, pair: Pair) -> Any:
    return at(numbers["dense"], pair.batch, pair.head, pair.row, pair.column).float()


def _none(_: Numbers, __: Pair) -> Any:
    return 0.0


#: Biases by their kinds.
BIASES: dict[str, Callable[[Numbers, Pair], Any]] = {
    "none": _none,
    "left": _one_side,
    "both": _two_sides,
    "left bent": _one_bent_side,
    "both bent": _two_bent_sides,
    "table": _table,
    "sums": _sums,
    "dense": _dense,
}


def _with_exempt(form: Form, numbers: Numbers, pair: Pair, bias: Any) -> Any:
    """Return the bias with that of exempt tokens: 0, or their constant with other tokens.

    A hidden side stays hidden.
    """
    exempt = (pair.query < numbers["exempt"]) | (pair.key < numbers["exempt"])
    others: Any = 0.0
    if form.first:
        constant = at(numbers["first_constant"], pair.head)
        others = torch.where(pair.distance == 0, 0.0, -constant)
    return torch.where(exempt & ~torch.isneginf(bias), others, bias)


def score_mod(form: Form, numbers: Numbers) -> ScoreMod:
    """Return the function that turns a product of query and key into a score."""

    def modified(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
        query = at(numbers["query_positions"], batch, row)
        key = at(numbers["key_positions"], batch, column)
        if form.padded:
            row = torch.minimum(row, numbers["last_row"])
            column = torch.minimum(column, numbers["last_column"])
        pair = Pair(batch, head, row, column, query, key)
        bias = BIASES[form.bias](numbers, pair)
        if form.exempt:
            bias = _with_exempt(form, numbers, pair, bias)
        score = score * numbers["scale"]
        if form.factors:
            score = score * at(numbers["factors"], batch, head, row)
        return score + bias

    return modified


def mask_mod(numbers: Numbers) -> MaskMod:
    """Return the function that says which keys a query sees, for every mask and padding."""

    def visible(batch: Any, head: Any, row: Any, column: Any) -> Any:
        del head
        key = at(numbers["key_positions"], batch, column)
        near = (key >= at(numbers["first"], batch, row)) | (key < numbers["sink"])
        return near & (key >= 0) & (key <= at(numbers["last"], batch, row))

    return visible
