"""Exempt tokens: calls of the core for the keys that have slopes and for those that have none.

Scores of exempt keys have no slope, but a constant for each query, which leaves the kernel and goes
into the logsumexp; so have all scores of exempt queries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core
from ntk_alibi.fused.call import AttentionCall


class KeySubset(NamedTuple):
    """Some of the keys, and their bias.

    Attributes:
        bias: in the core's form.
        mask: (batch, keys), 1 for the keys of the subset, or None for all.
        shift: added to their logsumexp, (1 or batch, heads, 1 or queries), or None.
        exempt: whether these are the exempt keys.
    """

    bias: _core.AttentionBias
    mask: NDArray[np.uint8] | None
    shift: NDArray[np.float32] | None = None
    exempt: bool = False


def key_subsets(call: AttentionCall) -> list[KeySubset]:
    """Return one subset of all keys, or the exempt ones and the others."""
    bias, problem = call.bias, call.problem
    mask = problem.key_padding_mask
    if not bias.exempt:
        return [KeySubset(bias.core or bias.in_core(problem.shape), mask)]
    batch, heads, _, keys = problem.shape
    exempt = problem.positions()[1] < bias.exempt
    real = np.ones((batch, keys), np.bool_) if mask is None else mask.astype(np.bool_)
    rows, zero = exempt_queries(call), np.float32(0)
    slopes = bias.left, bias.right
    none = (np.where(np.isinf(side), side, zero) for side in slopes)
    some = (np.where(rows & ~np.isinf(side), zero, side) for side in slopes)
    shifts: list[Any] = [None, None]
    if bias.first is not None:
        first = np.broadcast_to(bias.first[None, :, None], (batch, heads, 1))
        shifts = [np.where(rows, zero, -first), np.where(rows, -first, zero)]
    return [
        KeySubset(_core.linear_bias(*none), (real & exempt).view(np.uint8), shifts[0], True),
        KeySubset(_core.linear_bias(*some), (real & ~exempt).view(np.uint8), shifts[1]),
    ]


def exempt_queries(call: AttentionCall) -> NDArray[np.bool_]:
    """Return which queries are exempt, (1 or batch, 1, queries)."""
    exempt: NDArray[np.bool_] = (call.problem.positions()[0] < call.bias.exempt)[:, None]
    return exempt


def first_gradient(
    call: AttentionCall,
    output_gradient: Any,
    output: Any,
    logsumexp: NDArray[np.float32],
    logsumexp_gradient: NDArray[np.float32] | None,
    subset_output: Any,
    subset_logsumexp: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the gradient of the constant `first`, (batch, heads, queries).

    The constant is subtracted from all scores of one subset, whose sum of ds_ij is that of its
    weights times do_i.o_i(subset) - do_i.o_i + dl_i; over all keys it is dl_i.
    """
    do, whole, part = (
        np.asarray(_arrays.to_numpy(x), np.float64)
        for x in (output_gradient, output, subset_output)
    )
    log = logsumexp.astype(np.float64)
    seen = ~np.isneginf(log)
    dl = 0.0 if logsumexp_gradient is None else logsumexp_gradient
    share = np.exp(subset_logsumexp - np.where(seen, log, 0.0))
    of_subset = share * ((do * (part - whole)).sum(axis=-1) + dl)
    of_rest = np.where(seen, dl, 0.0) - of_subset
    gradient: NDArray[np.float32] = np.where(exempt_queries(call), of_rest, of_subset)
    return -gradient.astype(np.float32)
