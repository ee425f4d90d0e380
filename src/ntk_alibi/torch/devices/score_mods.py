"""Scores and masks of single pairs as FlexAttention wants them, and the numbers that they read.

There is one function for each kind of bias. It gets the numbers of a call, captured as tensors, and
a `Pair`, and returns the number to add to the score. Indices may be numbers or tensors that
broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from ntk_alibi import _arrays
from ntk_alibi.fused.call import AttentionCall

#: The position of keys that are hidden from all queries.
HIDDEN = -1

#: The greatest int32, the last position that a query without a limit ahead sees.
LAST = 2**31 - 1

#: The most rows of a batch for which a single query's keys are divided among multiprocessors. Each
#: number of rows is compiled for itself; with more rows there is enough to do without.
MOST_DIVIDED = 16

#: Tensors by their names. All numbers are tensors, since torch compiles anew for other constants.
Numbers = dict[str, torch.Tensor]

#: A function of a pair of a query and a key: score, batch row, head, query and key to score.
ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]

#: A function of batch row, head, query and key, which says whether the query sees the key.
MaskMod = Callable[[Any, Any, Any, Any], Any]


class Variant(NamedTuple):
    """The compiled function that a call needs; calls that differ in numbers and lengths share it.

    Attributes:
        bias: the kind of bias, a name of `BIASES`.
        exempt: whether there are exempt tokens.
        first: whether exempt tokens have a constant.
        factors: whether scores have factors.
        padded: whether lengths were padded to multiples of a block.
        log: whether the logsumexp is needed.
        divided: whether there is a single query, whose keys may be divided among multiprocessors.
    """

    bias: str
    exempt: bool
    first: bool
    factors: bool
    padded: bool
    log: bool
    divided: bool


def variant_of(call: AttentionCall, *, padded: bool, log: bool) -> Variant:
    """Return the variant of a call."""
    bias = call.bias
    sides = "both" if call.problem.mask.sees_ahead else "left"
    kinds = {
        "dense": bias.dense is not None,
        "sums": bias.sums is not None,
        "table": bias.table is not None,
        f"{sides} bent": bias.far_left is not None,
        sides: bias.left is not None,
        "none": True,
    }
    batch, _, queries, _ = call.problem.shape
    return Variant(
        bias=next(name for name, given in kinds.items() if given),
        exempt=bias.exempt > 0,
        first=bias.first is not None,
        factors=call.factors is not None,
        padded=padded,
        log=log,
        divided=queries == 1 and batch <= MOST_DIVIDED and not padded,
    )


def captured(call: AttentionCall, queries: int, keys: int) -> Numbers:
    """Return the numbers of a call whose lengths are padded to so many queries and keys.

    Padded queries stand where the last query stands, and padded keys are hidden.
    """
    like = call.query
    device = like.device

    def number(value: float, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full((), value, dtype=dtype, device=device)

    at_queries, at_keys = call.problem.positions(like)
    first, end = call.problem.mask.interval(at_queries)
    real = call.problem.key_padding_mask
    if real is not None:
        at_keys = torch.where(_arrays.boolean(real, like), at_keys, HIDDEN)
    rows = {
        "query_positions": at_queries,
        "first_seen": first.clamp(min=0),
        "last_seen": (end - 1).clamp(max=LAST),
    }
    numbers = {name: _with_last(x.int(), queries) for name, x in rows.items()}
    numbers["key_positions"] = F.pad(at_keys.int(), (0, keys - at_keys.shape[1]), value=HIDDEN)
    numbers |= {
        "sink": number(call.problem.mask.sink),
        "scale": number(call.scale, torch.float32),
        "last_row": number(call.problem.shape[2] - 1),
        "last_column": number(call.problem.shape[3] - 1),
    }
    if call.factors is not None:
        numbers["factors"] = call.factors
    numbers |= _of_bias(call, number)
    # Compiled code loses the gradients of captured views (seen with torch 2.13).
    return {name: x.clone() if _arrays.is_recorded(x) else x for name, x in numbers.items()}


def _of_bias(call: AttentionCall, number: Any) -> Numbers:
    bias = call.bias
    numbers: Numbers = dict(bias.numbers)
    if bias.left is bias.right:
        # FlexAttention differentiates no tensor that is read at two places.
        copied = numbers.keys() & {"right", "far_right"}
        numbers |= {name: numbers[name].clone() for name in copied}
    scalars = {"knee": bias.far_left, "exempt": bias.exempt or None, "table_begin": bias.table}
    numbers |= {name: number(getattr(bias, name)) for name, x in scalars.items() if x is not None}
    if bias.sums is not None:
        sums, (queries, keys) = numbers.pop("sums"), call.problem.shape[2:]
        high = sums.float()
        low = (sums.detach() - high.detach()).float()
        numbers["row_sums"] = high[..., keys - queries :].clone()
        numbers["row_rests"] = low[..., keys - queries :].clone()
        numbers["column_sums"], numbers["column_rests"] = high, low
    if bias.dense is not None:
        numbers["dense"] = bias.dense.reshape((1,) * (4 - bias.dense.ndim) + bias.dense.shape)
    return numbers


def _with_last(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Return rows (1 or batch, n) that repeat their last number up to a length."""
    missing = length - rows.shape[1]
    return torch.cat([rows, rows[:, -1:].expand(-1, missing)], dim=1) if missing else rows


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


def _with_exempt(variant: Variant, numbers: Numbers, pair: Pair, bias: Any) -> Any:
    """Return the bias with that of exempt tokens: 0, or their constant with other tokens.

    A hidden side stays hidden.
    """
    exempt = (pair.query < numbers["exempt"]) | (pair.key < numbers["exempt"])
    others: Any = 0.0
    if variant.first:
        constant = at(numbers["first"], pair.head)
        others = torch.where(pair.distance == 0, 0.0, -constant)
    return torch.where(exempt & ~torch.isneginf(bias), others, bias)


def score_mod(variant: Variant, numbers: Numbers) -> ScoreMod:
    """Return the function that turns a product of query and key into a score."""

    def modified(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
        query = at(numbers["query_positions"], batch, row)
        key = at(numbers["key_positions"], batch, column)
        if variant.padded:
            row = torch.minimum(row, numbers["last_row"])
            column = torch.minimum(column, numbers["last_column"])
        pair = Pair(batch, head, row, column, query, key)
        bias = BIASES[variant.bias](numbers, pair)
        if variant.exempt:
            bias = _with_exempt(variant, numbers, pair, bias)
        score = score * numbers["scale"]
        if variant.factors:
            score = score * at(numbers["factors"], batch, head, row)
        return score + bias

    return modified


def mask_mod(numbers: Numbers) -> MaskMod:
    """Return the function that says which keys a query sees, for every mask and padding."""

    def visible(batch: Any, head: Any, row: Any, column: Any) -> Any:
        del head
        key = at(numbers["key_positions"], batch, column)
        near = (key >= at(numbers["first_seen"], batch, row)) | (key < numbers["sink"])
        return near & (key >= 0) & (key <= at(numbers["last_seen"], batch, row))

    return visible
