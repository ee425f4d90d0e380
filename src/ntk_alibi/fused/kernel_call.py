"""Calls of the compiled core: forward and backward, for one subset of the keys.

With exempt tokens there are two: the exempt keys and the other keys. Scores of exempt keys, and all
scores of exempt queries, have no slope but a constant for each query. Within one call it does not
change the softmax, so it is added to the logsumexp afterwards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core
from ntk_alibi._arrays import Array
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.quantized_rows import stored


class KeySubset(NamedTuple):
    """A subset of the keys, and its bias.

    Attributes:
        bias: the bias in the core's form.
        mask: (batch, keys), 1 for the keys of the subset, or None for all.
        shift: added to the subset's logsumexp, (1 or batch, heads, 1 or queries), or None.
        exempt: whether these are the exempt keys.
    """

    bias: _core.AttentionBias
    mask: NDArray[np.uint8] | None
    shift: NDArray[np.float32] | None = None
    exempt: bool = False


def key_subsets(call: AttentionCall) -> list[KeySubset]:
    """Return one subset with all keys, or two: the exempt keys and the others."""
    bias, problem = call.bias, call.problem
    mask = problem.key_padding_mask
    if not bias.exempt:
        return [KeySubset(bias.core or bias.in_core(problem.shape), mask)]
    batch, heads, _, keys = problem.shape
    exempt = problem.positions()[1] < bias.exempt
    real = np.ones((batch, keys), np.bool_) if mask is None else mask.astype(np.bool_)
    rows, zero = exempt_queries(call), np.float32(0)
    flat = {n: np.where(np.isinf(side), side, zero) for n, side in bias.slopes.items()}
    sloped = {n: np.where(rows & ~np.isinf(side), zero, side) for n, side in bias.slopes.items()}
    flat_bias, sloped_bias = (
        bias._replace(**slopes, core=None).in_core(problem.shape) for slopes in (flat, sloped)
    )
    shifts: list[Any] = [None, None]
    if bias.first is not None:
        first = np.broadcast_to(bias.first[None, :, None], (batch, heads, 1))
        shifts = [np.where(shifted, -first, zero) for shifted in _shifted_queries(call)]
    return [
        KeySubset(flat_bias, (real & exempt).view(np.uint8), shifts[0], True),
        KeySubset(sloped_bias, (real & ~exempt).view(np.uint8), shifts[1]),
    ]


def exempt_queries(call: AttentionCall) -> NDArray[np.bool_]:
    """Return a mask of the exempt queries, (1 or batch, 1, queries)."""
    exempt: NDArray[np.bool_] = (call.problem.positions()[0] < call.bias.exempt)[:, None]
    return exempt


def _shifted_queries(call: AttentionCall) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the queries whose scores `first` lowers: with the first key, and with other keys.

    The first token's score with itself has no constant. Queries before it have one with all keys:
    there are some if there are more queries than keys.
    """
    itself: NDArray[np.bool_] = (call.problem.positions()[0] == 0)[:, None]
    return ~itself, exempt_queries(call)


def first_gradient(
    call: AttentionCall,
    output_gradient: Any,
    output: Any,
    logsumexp: NDArray[np.float64],
    logsumexp_gradient: NDArray[np.float32] | None,
    subset_output: Any,
    subset_logsumexp: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return the gradient of the constant `first`, (batch, heads, queries).

    The constant is subtracted from all scores of one subset. The sum of ds_ij over a subset is the
    sum of its weights times do_i.o_i(subset) - do_i.o_i + dl_i; over all keys it is dl_i.
    """
    do, whole, part = (
        np.asarray(_arrays.to_numpy(x), np.float64)
        for x in (output_gradient, output, subset_output)
    )
    log = logsumexp
    seen = ~np.isneginf(log)
    dl = 0.0 if logsumexp_gradient is None else logsumexp_gradient
    share = np.exp(subset_logsumexp - np.where(seen, log, 0.0))
    of_subset = share * ((do * (part - whole)).sum(axis=-1) + dl)
    of_rest = np.where(seen, dl, 0.0) - of_subset
    with_first, with_others = _shifted_queries(call)
    gradient = np.where(with_first, of_subset, 0.0) + np.where(with_others, of_rest, 0.0)
    return -gradient.astype(np.float32)


class ForwardResults(NamedTuple):
    """Results of the forward pass and their incoming gradients."""

    output: Any
    logsumexp: Any
    output_gradient: Any
    logsumexp_gradient: Any = None


def attend(
    call: AttentionCall,
    subset: KeySubset,
    *,
    counts: NDArray[np.int64] | None = None,
    log: bool = True,
    known: NDArray[np.float64] | None = None,
) -> tuple[Array, NDArray[np.float64] | None]:
    """Return output and logsumexp (None without log) over a subset of the keys.

    The logsumexp is float64: the backward pass computes weights from it, which float32 would round.
    """
    scales, memory = None, call.memory
    if memory is None:
        (key, key_scales), (value, value_scales) = stored(call.key), stored(call.value)
        memory = _arrays.storage(call.query), key, value
        if key_scales is not None and value_scales is not None:
            scales = _core.KeyScales(key_scales, value_scales)
    query, key, value = memory
    output, written = _arrays.empty_pair(call.query, query)
    logsumexp = np.empty(call.query.shape[:3], np.float64) if log else None
    _core.attention(
        query,
        key,
        value,
        subset.bias,
        call.rule,
        _tokens(call, subset),
        written,
        logsumexp,
        counts,
        call.norms,
        known,
        scales,
    )
    if subset.shift is not None and logsumexp is not None:
        logsumexp += subset.shift
    return output, logsumexp


def query_gradient(
    call: AttentionCall,
    subset: KeySubset,
    results: ForwardResults,
    key_and_value: tuple[NDArray[Any], NDArray[Any]],
    bias_gradients: dict[str, NDArray[Any]],
) -> Array:
    """Return the query's gradient over a subset of the keys.

    Gradients of the subset's keys and values are written to key_and_value; gradients of the bias
    are added to bias_gradients.
    """
    log = results.logsumexp if subset.shift is None else results.logsumexp - subset.shift
    gradient, written = _arrays.empty_pair(call.query)
    of_bias: dict[str, Any] = {} if subset.exempt else bias_gradients
    storage = _arrays.storage
    _core.attention_gradients(
        storage(call.query),
        storage(call.key),
        storage(call.value),
        subset.bias,
        call.rule,
        _tokens(call, subset),
        storage(results.output),
        log,
        storage(results.output_gradient),
        results.logsumexp_gradient,
        written,
        key_and_value[0],
        key_and_value[1],
        _core.BiasGradients(**of_bias),
    )
    return gradient


def _tokens(call: AttentionCall, subset: KeySubset) -> _core.Tokens | None:
    queries, keys = call.problem.query_positions, call.problem.key_positions
    if queries is None and keys is None and subset.mask is None and call.factors is None:
        return None
    return _core.Tokens(queries, keys, subset.mask, call.factors)
