"""Functions for FlexAttention that compute the score and the mask of one query and one key.

Each kind of bias has a function that takes the captured tensors of a call and a `Pair`, and returns
the bias of the pair. Indices may be integers, or tensors that broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import is_recorded
from ntk_alibi.fused.call import AttentionCall

#: The position of keys that are hidden from all queries.
HIDDEN = -1

#: The greatest int32, the last position that a query without a limit ahead sees.
LAST = 2**31 - 1

#: Up to this many rows, the keys of a single query are divided among multiprocessors, which costs
#: one compilation per number of rows. More rows keep the multiprocessors busy without that.
MOST_DIVIDED = 16

#: Captured tensors by name. Scalars are tensors, too, since torch compiles anew for each constant.
Captured = dict[str, torch.Tensor]

#: A function of score, batch row, head, query index and key index that returns the new score.
ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]

#: A function of batch row, head, query index and key index: whether the query sees the key.
MaskMod = Callable[[Any, Any, Any, Any], Any]


class Variant(NamedTuple):
    """What is compiled into a function; calls that differ in values and lengths share one.

    Attributes:
        bias: the kind of bias, a key of `BIASES`.
        exempt: whether there are exempt tokens.
        first: whether the bias of exempt tokens is a constant.
        factors: whether scores have factors.
        masked: whether there is a mask of pairs.
        padded: whether lengths were padded to multiples of a block.
        log: whether the logsumexp is needed.
        divided: whether there is a single query, whose keys may be divided among multiprocessors.
    """

    bias: str
    exempt: bool
    first: bool
    factors: bool
    masked: bool
    padded: bool
    log: bool
    divided: bool


def choose_variant(call: AttentionCall, *, padded: bool, log: bool) -> Variant:
    """Return the variant for a call."""
    bias = call.bias
    sides = "both" if call.problem.mask.sees_ahead else "left"
    kinds = {
        "dense": bias.dense is not None,
        "sums": bias.sums is not None,
        "table": bias.table is not None,
        sides: bias.left is not None,
        "none": True,
    }
    batch, _, queries, _ = call.problem.shape
    return Variant(
        bias=next(name for name, given in kinds.items() if given),
        exempt=bias.exempt > 0,
        first=bias.first is not None,
        factors=call.factors is not None,
        masked=call.problem.visible is not None,
        padded=padded,
        log=log,
        divided=queries == 1 and batch <= MOST_DIVIDED and not padded,
    )


def capture_tensors(call: AttentionCall, queries: int, keys: int) -> Captured:
    """Return the tensors of a call, padded to so many queries and keys.

    Padded queries have the position of the last query, and padded keys are hidden.
    """
    like = call.query
    device = like.device

    def number(value: float, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full((), value, dtype=dtype, device=device)

    at_queries, at_keys = call.problem.positions(like)
    first, end = call.problem.mask.interval(at_queries)
    real = call.problem.key_padding_mask
    if real is not None:
        at_keys = torch.where(backend_of(like).convert(real, "bool"), at_keys, HIDDEN)
    rows = {
        "query_positions": at_queries,
        "first_seen": first.clamp(min=0),
        "last_seen": (end - 1).clamp(max=LAST),
    }
    captured = {name: _repeat_last(x.int(), queries) for name, x in rows.items()}
    captured["key_positions"] = F.pad(at_keys.int(), (0, keys - at_keys.shape[1]), value=HIDDEN)
    captured |= {
        "sink": number(call.problem.mask.sink),
        "scale": number(call.scale, torch.float32),
        "last_row": number(call.problem.shape[2] - 1),
        "last_column": number(call.problem.shape[3] - 1),
    }
    if call.factors is not None:
        captured["factors"] = call.factors
    if call.problem.visible is not None:
        captured["visible"] = call.problem.visible.mask
    captured |= _capture_bias(call, number)
    # Compiled code loses the gradients of captured views (seen with torch 2.13).
    return {name: x.clone() if is_recorded(x) else x for name, x in captured.items()}


def _capture_bias(call: AttentionCall, number: Any) -> Captured:
    bias = call.bias
    captured: Captured = dict(bias.arrays)
    if bias.left is not None and bias.left is bias.right:
        # FlexAttention does not differentiate a tensor that is read in two places.
        captured["right"] = bias.right.clone()
    scalars = {"exempt": bias.exempt or None, "table_begin": bias.table}
    captured |= {name: number(getattr(bias, name)) for name, x in scalars.items() if x is not None}
    if bias.sums is not None:
        sums, (queries, keys) = captured.pop("sums"), call.problem.shape[2:]
        high = sums.float()
        low = (sums.detach() - high.detach()).float()
        captured["row_sums"] = high[..., keys - queries :].clone()
        captured["row_rests"] = low[..., keys - queries :].clone()
        captured["column_sums"], captured["column_rests"] = high, low
    if bias.dense is not None:
        captured["dense"] = bias.dense.reshape((1,) * (4 - bias.dense.ndim) + bias.dense.shape)
    return captured


def _repeat_last(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Repeat the last column of (1 or batch, n) up to a length."""
    missing = length - rows.shape[1]
    return torch.cat([rows, rows[:, -1:].expand(-1, missing)], dim=1) if missing else rows


class Pair(NamedTuple):
    """A query and a key.

    Attributes:
        batch, head, row, column: their indices.
        query, key: their positions.
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


def entry_at(tensor: torch.Tensor, *indices: Any) -> Any:
    """Return the entry at indices; an axis of size 1 serves all indices."""
    sized = zip(indices, tensor.shape, strict=True)
    return tensor[tuple(index if size > 1 else 0 for index, size in sized)]


def _one_side(captured: Captured, pair: Pair) -> Any:
    """Return -slope d behind the query; the mask hides the keys ahead."""
    left = entry_at(captured["left"], pair.batch, pair.head, pair.row)
    # An infinite slope hides the keys behind; its product with 0 would be NaN.
    return -torch.where(pair.distance > 0, left, 0.0) * pair.distance


def _two_sides(captured: Captured, pair: Pair) -> Any:
    right = entry_at(captured["right"], pair.batch, pair.head, pair.row)
    return _one_side(captured, pair) + torch.where(pair.distance < 0, right, 0.0) * pair.distance


def _table(captured: Captured, pair: Pair) -> Any:
    table = captured["table"]
    place = (pair.distance - captured["table_begin"]).clamp(0, table.shape[1] - 1)
    return entry_at(table, pair.head, place)


def _sums(captured: Captured, pair: Pair) -> Any:
    """Return differences of float64 sums, each of which was split into two float32 values."""
    row, column = (pair.batch, pair.head, pair.row), (pair.batch, pair.head, pair.column)
    sums = entry_at(captured["row_sums"], *row) - entry_at(captured["column_sums"], *column)
    return sums + (
        entry_at(captured["row_rests"], *row) - entry_at(captured["column_rests"], *column)
    )


def _dense(captured: Captured, pair: Pair) -> Any:
    return entry_at(captured["dense"], pair.batch, pair.head, pair.row, pair.column).float()


#: The function of each kind of bias.
BIASES: dict[str, Callable[[Captured, Pair], Any]] = {
    "none": lambda captured, pair: 0.0,
    "left": _one_side,
    "both": _two_sides,
    "table": _table,
    "sums": _sums,
    "dense": _dense,
}


def _with_exempt(variant: Variant, captured: Captured, pair: Pair, bias: Any) -> Any:
    """Set the bias of exempt tokens to 0, or to their constant; a hidden side stays hidden."""
    exempt = (pair.query < captured["exempt"]) | (pair.key < captured["exempt"])
    others: Any = 0.0
    if variant.first:
        constant = entry_at(captured["first"], pair.head)
        others = torch.where(pair.distance == 0, 0.0, -constant)
    return torch.where(exempt & ~torch.isneginf(bias), others, bias)


def score_mod(variant: Variant, captured: Captured) -> ScoreMod:
    """Return the function that computes a score from a product of query and key."""

    def modified(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
        query = entry_at(captured["query_positions"], batch, row)
        key = entry_at(captured["key_positions"], batch, column)
        if variant.padded:
            row = torch.minimum(row, captured["last_row"])
            column = torch.minimum(column, captured["last_column"])
        pair = Pair(batch, head, row, column, query, key)
        bias = BIASES[variant.bias](captured, pair)
        if variant.exempt:
            bias = _with_exempt(variant, captured, pair, bias)
        score = score * captured["scale"]
        if variant.factors:
            score = score * entry_at(captured["factors"], batch, head, row)
        return score + bias

    return modified


def mask_mod(captured: Captured) -> MaskMod:
    """Return the function that tells whether a query sees a key, for every mask and padding."""

    def visible(batch: Any, head: Any, row: Any, column: Any) -> Any:
        key = entry_at(captured["key_positions"], batch, column)
        near = (key >= entry_at(captured["first_seen"], batch, row)) | (key < captured["sink"])
        seen = near & (key >= 0) & (key <= entry_at(captured["last_seen"], batch, row))
        if "visible" not in captured:
            return seen
        row = torch.minimum(row, captured["last_row"])
        column = torch.minimum(column, captured["last_column"])
        return seen & entry_at(captured["visible"], batch, head, row, column)

    return visible
