"""Gradients of attention, computed by the compiled core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi._arrays import Array
from ntk_alibi._backends import backend_of, empty_pair, promote_to_float32
from ntk_alibi._torch_state import is_followed
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import ARRAYS
from ntk_alibi.fused.call import AttentionCall, all_options, checked_call
from ntk_alibi.fused.core_problem import CoreProblem, exempt_queries, shifted_queries
from ntk_alibi.fused.forward import compute_in_core, rounded_logsumexp, run_core
from ntk_alibi.fused.parts import Part, compute_in_parts, rotated_parts, times_factor
from ntk_alibi.masks import Cut

#: The largest magnitude of a float32 logsumexp whose rounding, at most 2^-11, is accepted.
GREATEST_ROUNDED_LOGSUMEXP = 2.0**14


@dataclass(frozen=True)
class AttentionGradients:
    """Gradients of attention: arrays like the inputs, and NumPy arrays for the bias.

    Attributes:
        query, key, value: gradients of the inputs, in their shapes and dtypes.
        left, right: gradients of a linear bias's slopes, (batch, heads, queries), or None.
        dense: gradient of a dense bias, (batch, heads, queries, keys), or None.
        table: gradient of a bias over distance, (heads, distances), float64, or None. The first
            distance is `table_begin`; the chain rule gives the gradients of the bias's parameters.
        sums: gradient of prefix sums of log gates, (batch, heads, keys), float64, or None.
        first: gradient of `BiALiBi`'s constant, (batch, heads, queries), or None.
    """

    query: Any
    key: Any
    value: Any
    left: NDArray[np.float32] | None
    right: NDArray[np.float32] | None
    dense: NDArray[np.float32] | None
    table: NDArray[np.float64] | None = None
    table_begin: int = 0
    sums: NDArray[np.float64] | None = None
    first: NDArray[np.float32] | None = None


class ForwardResults(NamedTuple):
    """Results of attention and the gradients of the loss with respect to them."""

    output: Any
    logsumexp: Any
    output_gradient: Any
    logsumexp_gradient: Any = None

    def widened(self) -> ForwardResults:
        """Return the results with outputs in float32 or float64."""
        wide = promote_to_float32
        return self._replace(output=wide(self.output), output_gradient=wide(self.output_gradient))


def attention_gradients(
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    logsumexp: Array,
    output_gradient: Array,
    logsumexp_gradient: Array | None = None,
    bias: BiasObject | Array | None = None,
    *,
    bias_gradient: bool = False,
    **options: Any,
) -> AttentionGradients:
    """Compute the gradients of `attention` from its output and logsumexp.

    Formula::

        p_ij = exp(s_ij - logsumexp_i);  ds_ij = p_ij (z_ij do_i.v_j - do_i.o_i + dl_i)
        dq_i = scale sum_j ds_ij k_j;  dk_j = scale sum_i ds_ij q_i;  dv_j = sum_i z_ij p_ij do_i

    z_ij is the factor of dropout, 1 without dropout. Weights are computed again tile by tile, so no
    matrix of all pairs is stored. Torch's autograd runs the same code.

    Args:
        query: the queries of the call of `attention`.
        key: the keys of that call.
        value: the values of that call.
        output: the result of that call.
        logsumexp: the logsumexp of that call, with return_logsumexp=True. If it covers more keys
            than key, as after `merge`, its rounding is an error of the weights; beyond 2^14 it must
            then be float64.
        output_gradient: the gradient of output, any strides.
        logsumexp_gradient: the gradient of logsumexp, or None for zeros.
        bias: the bias of that call.
        bias_gradient: whether to compute the gradient of the bias, too.
        options: causal, window, causal_block, sink, mask, key_padding_mask, query_positions,
            key_positions, align, scale, skip_tolerance, rotary, log_n, dropout and seed of that
            call. Blocks with at most the tolerated share of a query's weights are skipped here,
            too.

    Returns:
        The gradients, bitwise the same for any number of threads.

    Raises:
        TypeError, ValueError: an argument is wrong, as for `attention`; torch records, transforms
            or traces one.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> from ntk_alibi.fused.gradients import attention_gradients
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 2, 5, 8), np.float32)
        >>> results = na.attention(query, key, value, na.ALiBi(2), return_logsumexp=True)
        >>> gradients = attention_gradients(
        ...     query, key, value, *results, np.ones_like(query), bias=na.ALiBi(2)
        ... )
        >>> total = gradients.value.sum()  # weights sum to 1
        >>> bool(np.allclose(total, 2 * 5 * 8, atol=1e-4))
        True

    Source: Dao et al. 2022 (arXiv 2205.14135), appendix B.
    """
    _checks.attention_inputs(query, key, value)
    given = {"output": output, "output_gradient": output_gradient, "logsumexp": logsumexp}
    if logsumexp_gradient is not None:
        given["logsumexp_gradient"] = logsumexp_gradient
    for name, array in {"query": query, "key": key, "value": value, **given}.items():
        if is_followed(array):
            raise ValueError(
                f"{name} must be a tensor that torch neither records nor transforms: gradients are "
                "constants here; torch.autograd and torch.func differentiate ntk_alibi.attention "
                "itself"
            )
    for name, array in given.items():
        _checks.check_plain(name, array)
        _checks.array(name, array)
        like_query = name.startswith("output")
        if not like_query:
            _checks.floating_dtype(array.dtype, _arrays.ANY_DTYPES, name)
        shape = tuple(query.shape) if like_query else tuple(query.shape[:3])
        if tuple(array.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(array.shape)}")
        if like_query and array.dtype != query.dtype:
            raise TypeError(f"{name} must be of query's dtype {query.dtype}, got {array.dtype}")
    call = checked_call(query, key, value, bias, all_options(options))
    if call.dropout is not None and options.get("seed") is None:
        _checks.missing("seed", "with dropout: the seed of the call of attention")
    logsumexp = _exact_logsumexp(logsumexp, call)
    results = ForwardResults(output, logsumexp, output_gradient, logsumexp_gradient)
    return compute_gradients(call, results, bias_gradient=bias_gradient)


def _exact_logsumexp(logsumexp: Any, call: AttentionCall) -> Any:
    """Return a logsumexp without its rounding to float32, which would change all weights."""
    if _arrays.dtype_name(logsumexp.dtype) == "float64":
        return logsumexp
    rounded = _arrays.to_numpy(logsumexp).astype(np.float32)
    large = np.abs(rounded) > GREATEST_ROUNDED_LOGSUMEXP
    large &= np.isfinite(rounded)
    if not large.any():
        return logsumexp
    _, exact, _ = compute_in_parts(call, compute_in_core)
    exact = _arrays.to_numpy(exact)
    other = (rounded_logsumexp(exact, call.query) != rounded)[large]
    if other.any():
        raise ValueError(
            "logsumexp must be float64, or the logsumexp of the same call, beyond "
            f"{GREATEST_ROUNDED_LOGSUMEXP:g}: float32 rounds it by too much there, got "
            f"{int(other.sum())} other values"
        )
    return backend_of(logsumexp).convert(np.where(large, exact, rounded))


def compute_gradients(
    call: AttentionCall, results: ForwardResults, *, bias_gradient: bool
) -> AttentionGradients:
    """Compute the gradients of a checked call."""
    if call.rotary is not None:
        rotated = _sum_parts(call, rotated_parts(call), results.widened(), bias_gradient)
        at_queries, at_keys = call.problem.positions(call.query)
        query = call.rotary.rotated(rotated.query, at_queries, back=True)
        key = call.rotary.rotated(rotated.key, at_keys, back=True)
        return _rounded(replace(rotated, query=query, key=key), call)
    problem, in_core = call.problem, call.in_core()
    if len(in_core) > 1 and _arrays.dtype_name(call.query.dtype) != "float32":
        # The gradients of two subsets may exceed float16's range although their sum does not.
        wide = call.with_inputs(*map(promote_to_float32, (call.query, call.key, call.value)))
        summed = compute_gradients(wide, results.widened(), bias_gradient=bias_gradient)
        return _rounded(summed, call)
    log_gradient = results.logsumexp_gradient
    results = results._replace(
        logsumexp=_arrays.as_floats(results.logsumexp, np.float64),
        logsumexp_gradient=None if log_gradient is None else _arrays.as_floats(log_gradient),
    )
    key_gradient, key_memory = empty_pair(call.key)
    value_gradient, value_memory = empty_pair(call.value)
    key_and_value = key_memory, value_memory
    if len(in_core) > 1 or problem.key_padding_mask is not None or problem.segment_ids is not None:
        for memory in key_and_value:  # the core writes only to keys that queries may see
            memory[...] = 0
    bias = _zeros(call) if bias_gradient else {}
    parts = [_query_gradient(call, x, results, key_and_value, bias) for x in in_core]
    if bias_gradient and call.bias.exempt:
        for name in call.bias.slopes:  # slopes do not act on exempt queries
            bias[name][np.broadcast_to(exempt_queries(call.bias, problem), bias[name].shape)] = 0
        if call.bias.first is not None:
            inputs = call.query, call.key, call.value
            output, log = run_core(in_core[:1], *inputs, dropout=call.dropout, log=True)
            bias["first"] = _first_gradient(call, results, output, _arrays.to_numpy(log))
    query_gradient = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return _gradients(call, query_gradient, key_gradient, value_gradient, bias)


def _query_gradient(
    call: AttentionCall,
    problem: CoreProblem,
    results: ForwardResults,
    key_and_value: tuple[NDArray[Any], NDArray[Any]],
    bias_gradients: dict[str, NDArray[Any]],
) -> Array:
    """Return the gradient of query over the keys of a problem.

    Gradients of these keys and values are written to key_and_value; gradients of the bias
    are added to bias_gradients.
    """
    log = results.logsumexp if problem.shift is None else results.logsumexp - problem.shift
    gradient, written = empty_pair(call.query)
    storage = backend_of(call.query).storage
    _core.attention_gradients(
        problem.core,
        storage(call.query),
        storage(call.key),
        storage(call.value),
        storage(results.output),
        log,
        storage(results.output_gradient),
        results.logsumexp_gradient,
        written,
        key_and_value[0],
        key_and_value[1],
        {} if problem.exempt else bias_gradients,
        call.dropout and call.dropout.in_core(),
    )
    return gradient


def _first_gradient(
    call: AttentionCall, results: ForwardResults, output: Any, logsumexp: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return the gradient of `first`, (batch, heads, queries), from the results of a subset.

    The constant is subtracted from all scores of one subset. The sum of ds_ij over a subset is the
    sum of its weights times (do_i.o_i(subset) - do_i.o_i + dl_i); over all keys it is dl_i.
    """
    do, whole, part = (
        np.asarray(_arrays.to_numpy(x), np.float64)
        for x in (results.output_gradient, results.output, output)
    )
    log, dl = results.logsumexp, results.logsumexp_gradient
    seen = ~np.isneginf(log)
    dl = 0.0 if dl is None else dl
    share = np.exp(logsumexp - np.where(seen, log, 0.0))
    subset = share * ((do * (part - whole)).sum(axis=-1) + dl)
    rest = np.where(seen, dl, 0.0) - subset
    with_first, with_others = shifted_queries(call.bias, call.problem)
    gradient = np.where(with_first, subset, 0.0) + np.where(with_others, rest, 0.0)
    return -gradient.astype(np.float32)


def _gradients(
    call: AttentionCall, query: Any, key: Any, value: Any, bias: dict[str, Any]
) -> AttentionGradients:
    arrays = {name: bias.get(name) for name in ARRAYS}
    return AttentionGradients(query, key, value, table_begin=call.bias.table_begin, **arrays)


def _zeros(call: AttentionCall) -> dict[str, NDArray[Any]]:
    """Return zeros in the shapes of the bias's gradients."""
    bias, shape = call.bias, call.problem.shape
    zeros: dict[str, NDArray[Any]] = {n: np.zeros(shape[:3], np.float32) for n in bias.slopes}
    if bias.dense is not None:
        zeros["dense"] = np.zeros(shape, np.float32)
    if bias.table is not None:
        zeros["table"] = np.zeros(bias.table.shape, np.float64)
    if bias.sums is not None:
        zeros["sums"] = np.zeros((*shape[:2], shape[3]), np.float64)
    return zeros


def _sum_parts(
    call: AttentionCall, parts: list[Part], results: ForwardResults, bias_gradient: bool
) -> AttentionGradients:
    """Compute the gradients of a call, float32 or float64, as sums over its parts."""
    inputs = call.query, call.key, call.value
    zeros_like = backend_of(call.query).xp.zeros_like
    query, key, value = (zeros_like(promote_to_float32(x)) for x in inputs)
    spans = []
    for span, part, query_factor, key_factor in parts:
        rows, _, queries, keys, _ = span
        cut = ForwardResults(*(None if x is None else x[rows, :, queries] for x in results))
        gradients = compute_gradients(part, cut, bias_gradient=bias_gradient)
        query[rows, :, queries] += times_factor(gradients.query, query_factor)
        key[rows, :, keys] += times_factor(gradients.key, key_factor)
        value[rows, :, keys] += gradients.value
        spans.append((span, gradients))
    bias = _sum_bias_gradients(call, spans) if bias_gradient else {}
    return _gradients(call, query, key, value, bias)


def _rounded(gradients: AttentionGradients, call: AttentionCall) -> AttentionGradients:
    """Round gradients to the dtypes of the call's inputs."""
    names = "query", "key", "value"
    cast = backend_of(call.query).cast
    rounded = {x: cast(getattr(gradients, x), getattr(call, x).dtype) for x in names}
    return replace(gradients, **rounded)


def _sum_bias_gradients(
    call: AttentionCall, parts: list[tuple[Cut, AttentionGradients]]
) -> dict[str, Any]:
    """Sum the bias gradients of a call's parts into arrays for the whole bias."""
    total = _zeros(call)
    if call.bias.first is not None:
        total["first"] = np.zeros_like(total["left"])
    for (rows, _, queries, keys, _), gradients in parts:
        all_heads = rows, slice(None)
        indices: dict[str, Any] = {"table": (), "sums": (*all_heads, keys)}
        indices["dense"] = (*all_heads, queries, keys)
        for name, array in total.items():
            array[indices.get(name, (*all_heads, queries))] += getattr(gradients, name)
    return total
