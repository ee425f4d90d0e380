"""Calls of the compiled core: forward and backward, for one subset of the keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core
from ntk_alibi._arrays import Array
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.exempt import KeySubset

#: The share of a float32 sum that rounding to nearest swallows: half an ulp.
ROUNDING = 2.0**-24


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
    norms: NDArray[np.float32] | None = None,
    log: bool = True,
) -> tuple[Array, NDArray[np.float32] | None]:
    """Return output and logsumexp over a subset of the keys, the latter unless log is False."""
    output = _arrays.empty_like(call.query)
    logsumexp = np.empty(call.query.shape[:3], np.float32) if log else None
    inputs = _inputs(call, subset)
    _core.attention(*(*inputs, _arrays.storage(output), logsumexp, counts, norms))
    if subset.shift is not None and logsumexp is not None:
        logsumexp += subset.shift
    return output, logsumexp


def query_gradient(
    call: AttentionCall,
    subset: KeySubset,
    results: ForwardResults,
    key_and_value: tuple[NDArray[Any], ...],
    bias_gradients: dict[str, NDArray[Any]],
) -> Array:
    """Return the query's gradient over a subset of the keys.

    Gradients of its keys and values are written to key_and_value, those of the bias are added to
    bias_gradients.
    """
    log = results.logsumexp if subset.shift is None else results.logsumexp - subset.shift
    gradient = _arrays.empty_like(call.query)
    names = ("left", "right", "table", "sums", "dense")
    of_bias = (None if subset.exempt else bias_gradients.get(name) for name in names)
    incoming = (
        _arrays.readable(results.output),
        log,
        _arrays.readable(results.output_gradient),
        results.logsumexp_gradient,
    )
    written = (_arrays.storage(gradient), *key_and_value, *of_bias)
    _core.attention_gradients(*(*_inputs(call, subset), *incoming, *written))
    return gradient


def max_dropped_share(skip_tolerance: float | None) -> float:
    """Return the share of a row's softmax mass that the core may leave out; 0 reads every block.

    skip_tolerance 0.0 allows the share that rounding swallows anyway, None allows none.
    """
    return ROUNDING if skip_tolerance == 0.0 else skip_tolerance or 0.0


def _inputs(call: AttentionCall, subset: KeySubset) -> tuple[Any, ...]:
    """Return the arguments that the core's two functions share."""
    problem = call.problem
    causal, window, causal_block, sink = problem.mask.numbers()
    return (
        _arrays.readable(call.query),
        _arrays.readable(call.key),
        _arrays.readable(call.value),
        subset.bias,
        _arrays.CORE_DTYPES[_arrays.dtype_name(call.query.dtype)],
        call.scale,
        problem.query_positions,
        problem.key_positions,
        subset.mask,
        bool(causal),
        window,
        causal_block,
        sink,
        max_dropped_share(call.skip_tolerance),
    )
