"""The numbers of a call in the form in which FlexAttention's functions of a pair read them."""

from __future__ import annotations

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


class Form(NamedTuple):
    """The compiled form of a call; calls that differ only in numbers and lengths share it.

    Attributes:
        bias: the kind of bias, a name of `score_mods.BIASES`.
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


def form_of(call: AttentionCall, *, padded: bool, log: bool) -> Form:
    """Return the form of a call."""
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
    return Form(
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
        "first": first.clamp(min=0),
        "last": (end - 1).clamp(max=LAST),
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
    if torch.is_grad_enabled():
        # Compiled code loses the gradients of captured views (seen with torch 2.13).
        return {name: x.clone() if x.requires_grad else x for name, x in numbers.items()}
    return numbers


def _of_bias(call: AttentionCall, number: Any) -> Numbers:
    bias = call.bias
    # FlexAttention differentiates no tensor that is read at two places, and both sides may be one.
    copied = () if bias.left is not bias.right else ("right", "far_right")
    numbers: Numbers = {
        name: side.clone() if name in copied else side for name, side in bias.slopes.items()
    }
    if bias.far_left is not None:
        numbers["knee"] = number(bias.knee)
    if bias.exempt:
        numbers["exempt"] = number(bias.exempt)
    if bias.first is not None:
        numbers["first_constant"] = bias.first
    if bias.table is not None:
        numbers["table"] = bias.table
        numbers["table_begin"] = number(bias.table_begin)
    if bias.sums is not None:
        queries, keys = call.problem.shape[2:]
        high = bias.sums.float()
        low = (bias.sums.detach() - high.detach()).float()
        numbers["row_sums"] = high[..., keys - queries :].clone()
        numbers["row_rests"] = low[..., keys - queries :].clone()
        numbers["column_sums"], numbers["column_rests"] = high, low
    if bias.dense is not None:
        dense = bias.dense
        numbers["dense"] = dense.reshape((1,) * (4 - dense.ndim) + tuple(dense.shape))
    return numbers


def _with_last(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Return rows (1 or batch, n) that repeat their last number up to a length."""
    missing = length - rows.shape[1]
    return torch.cat([rows, rows[:, -1:].expand(-1, missing)], dim=1) if missing else rows
