"""Gradients of attention by the compiled core, which forms the weights anew, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array, as_floats
from ntk_alibi.biases.base import BiasObject, KernelBias
from ntk_alibi.fused import checks
from ntk_alibi.fused.kernel_call import ForwardResults, KernelCall
from ntk_alibi.fused.options import Options
from ntk_alibi.fused.rotated import QueryRun, Rotated, needs_rotation, resolve_dynamic_slopes


@dataclass(frozen=True)
class AttentionGradients:
    """What `attention_gradients` returns; arrays as the inputs, but for the bias's float32 NumPy.

    Attributes:
        query, key, value: shapes and dtypes as theirs.
        left, right: of a linear bias's slopes, (batch, heads, queries), or None.
        dense: of a bias of plain numbers, (batch, heads, queries, keys), or None.
        table: of a bias over distance, (heads, distances), float64, or None. The first distance is
            `table_begin`; parameters get theirs by the chain rule, as torch's autograd does it.
        sums: of running sums of log gates, (batch, heads, keys), float64, or None.
        first: of `BiALiBi`'s constant, (batch, heads, queries), or None.
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


def attention_gradients(
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    logsumexp: Array,
    output_gradient: Array,
    logsumexp_gradient: Array | None = None,
    bias: BiasObject | KernelBias | Array | None = None,
    *,
    bias_gradient: bool = False,
    **options: Any,
) -> AttentionGradients:
    """Gradients of `attention`, from its output and logsumexp; the matrix of all pairs is not kept.

    p_ij = exp(s_ij - logsumexp_i);  ds_ij = p_ij (do_i.v_j - do_i.o_i + dl_i)
    dq_i = scale sum_j ds_ij k_j;  dk_j = scale sum_i ds_ij q_i;  dv_j = sum_i p_ij do_i

    Tensors that require grad get theirs by torch's autograd, which calls this.

    Args:
        query: as of the call of `attention`.
        key: likewise.
        value: likewise.
        output: what it returned.
        logsumexp: likewise, with return_logsumexp=True.
        output_gradient: as output, any strides.
        logsumexp_gradient: as logsumexp, or None for zeros.
        bias: as of the call of `attention`.
        bias_gradient: whether to compute the gradient of the bias, too.
        options: causal, window, causal_block, sink, key_padding_mask, query_positions,
            key_positions, align, scale, skip_tolerance, rotary and log_n of that call; blocks of
            keys with no more than that share of a query's mass are left out here, too.

    Returns:
        The gradients; the same bits for any number of threads.

    Raises:
        TypeError, ValueError: as `attention`.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> from ntk_alibi.fused.gradients import attention_gradients
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 2, 5, 8), np.float32)
        >>> results = na.attention(query, key, value, na.ALiBi(2), return_logsumexp=True)
        >>> gradients = attention_gradients(
        ...     query, key, value, *results, np.ones_like(query), bias=na.ALiBi(2)
        ... )
        >>> bool(np.allclose(gradients.value.sum(), 2 * 5 * 8, atol=1e-4))  # weights sum to 1
        True

    Source: Dao et al. 2022 (arXiv 2205.14135), appendix B.
    """
    dtype = _checks.attention_shapes(query, key, value)
    given = Options(**options)
    checks.forward_results(query, output, logsumexp, output_gradient, logsumexp_gradient)
    if needs_rotation(given):
        results = (output, logsumexp, output_gradient, logsumexp_gradient)
        return _rotated_gradients(query, key, value, results, bias, bias_gradient, given)
    call = KernelCall.checked(query, key, value, bias, given, dtype)
    log_gradient = None if logsumexp_gradient is None else as_floats(logsumexp_gradient)
    outside = ForwardResults(output, as_floats(logsumexp), output_gradient, log_gradient)
    key_gradient, value_gradient = map(_arrays.empty_like, (key, value))
    parts = call.parts()
    if call.problem.mask is not None or len(parts) > 1:  # the core leaves what is hidden as it is
        for gradient in (key_gradient, value_gradient):
            _arrays.storage(gradient)[...] = 0
    shared = tuple(map(_arrays.storage, (key_gradient, value_gradient)))
    gradients = call.bias_gradients() if bias_gradient else {}
    own = [call.query_gradient(part, outside, shared, gradients) for part in parts]
    if bias_gradient and call.bias.exempt:
        call.finish_exempt(parts[0], outside, gradients)
    query_gradient = own[0] if len(own) == 1 else own[0] + own[1]
    known: dict[str, Any] = {name: gradients.get(name) for name in ("left", "right", "dense")}
    return AttentionGradients(
        query_gradient,
        key_gradient,
        value_gradient,
        **known,
        table=gradients.get("table"),
        table_begin=call.bias.table_begin,
        sums=gradients.get("sums"),
        first=gradients.get("first"),
    )


def _rotated_gradients(
    query: Any,
    key: Any,
    value: Any,
    results: tuple[Any, ...],
    bias: Any,
    bias_gradient: bool,
    options: Options,
) -> AttentionGradients:
    """Gradients of queries and keys that were rotated: rotated back, summed over the parts."""
    bias, checked = resolve_dynamic_slopes(query, key, bias, options)
    rotated = Rotated(query, key, checked)
    turned = rotated.query(query), rotated.key(key)
    module, wide = _arrays.namespace(query), _arrays.at_least_float32
    key_sum, value_sum = (module.zeros_like(wide(x)) for x in (key, value))
    found = []
    for part in rotated.parts(query, bias):
        output, logsumexp, *incoming = map(part.of_queries, results)
        own = attention_gradients(
            part.query(part.of_queries(turned[0])),
            part.key(part.of_keys(turned[1])),
            part.of_keys(wide(value)),
            wide(output),
            logsumexp,
            wide(incoming[0]),
            incoming[1],
            part.bias(bias),
            bias_gradient=bias_gradient,
            **part.options(rotated.options)._asdict(),
        )
        key_sum[:, :, part.keys] += part.key(own.key)
        value_sum[:, :, part.keys] += own.value
        found.append((part, own))
    query_sum = module.concatenate([part.query(own.query) for part, own in found], 2)
    return AttentionGradients(
        _arrays.cast_like(rotated.query(query_sum, back=True), query),
        _arrays.cast_like(rotated.key(key_sum, back=True), key),
        _arrays.cast_like(value_sum, value),
        **_joined_bias_gradients(found, rotated.shape),
    )


def _joined_bias_gradients(
    found: list[tuple[QueryRun, AttentionGradients]], shape: tuple[int, ...]
) -> dict[str, Any]:
    """Of the bias of a whole problem (batch, heads, queries, keys), from those of its parts."""
    joined: dict[str, Any] = {"left": None, "right": None, "first": None, "dense": None}
    for name in ("left", "right", "first"):
        rows = [getattr(own, name) for _, own in found]
        if rows[0] is not None:
            joined[name] = np.concatenate(rows, axis=2)
    first = found[0][1]
    if first.dense is not None:
        joined["dense"] = np.zeros(shape, np.float32)
        for part, own in found:
            joined["dense"][:, :, part.queries, part.keys] = own.dense
    if first.sums is not None:
        joined["sums"] = np.zeros((*shape[:2], shape[3]), np.float64)
        for part, own in found:
            joined["sums"][:, :, part.keys] += own.sums
    if first.table is not None:
        tables = [(own.table_begin, own.table) for _, own in found if own.table is not None]
        joined["table"], joined["table_begin"] = _joined_tables(tables)
    return joined


def _joined_tables(tables: list[tuple[int, NDArray[np.float64]]]) -> tuple[NDArray[Any], int]:
    """The sum of tables that begin at different distances, and where it begins."""
    begin = min(offset for offset, _ in tables)
    end = max(offset + table.shape[1] for offset, table in tables)
    joined = np.zeros((tables[0][1].shape[0], end - begin), np.float64)
    for offset, table in tables:
        joined[:, offset - begin : offset - begin + table.shape[1]] += table
    return joined, begin
