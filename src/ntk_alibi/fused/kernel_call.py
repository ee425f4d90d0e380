"""Calls of the compiled core: forward and backward, for one subset of the keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core
from ntk_alibi._arrays import Array
from ntk_alibi.biases.kernel_bias import SLOPES
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.exempt import KeySubset
from ntk_alibi.fused.quantized_rows import stored


class ForwardResults(NamedTuple):
    """Results of the forward pass and their incoming gradients."""

    output: Any
    logsumexp: Any
    output_gradient: Any
    logsumexp_gradient: Any = None


def attend(
    call: AttentionCall,
    subset: KeySubset,
    memory: tuple[NDArray[Any], ...] | None = None,
    *,
    counts: NDArray[np.int64] | None = None,
    norms: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    log: bool = True,
    known: NDArray[np.float64] | None = None,
) -> tuple[Array, NDArray[np.float64] | None]:
    """Return output and logsumexp (None without log) over a subset of the keys.

    The logsumexp is float64: the backward pass computes weights from it, which float32 would round.
    """
    scales = None
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
        norms,
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
    names = (*SLOPES, "table", "sums", "dense")
    of_bias: dict[str, Any] = {} if subset.exempt else {n: bias_gradients.get(n) for n in names}
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
