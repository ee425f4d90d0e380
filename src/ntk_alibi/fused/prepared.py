"""Attention for callers that have checked and converted the arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ntk_alibi._torch_state import Way, in_autocast_dtype
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.fused.attention import attend
from ntk_alibi.fused.call import AttentionCall, core_rule
from ntk_alibi.fused.dropout import Dropout
from ntk_alibi.fused.forward import (
    attend_in_core,
    core_tokens,
    forward,
    key_subsets,
    rounded_logsumexp,
)
from ntk_alibi.masks import Problem


def attend_prepared(
    query: Any,
    key: Any,
    value: Any,
    bias: KernelBias,
    problem: Problem,
    scale: float,
    factors: Any = None,
    *,
    way: Way,
    skip_tolerance: float | None = 0.0,
    norms: Any = None,
    dropout: Dropout | None = None,
    log: bool = False,
) -> tuple[Any, Any]:
    """Return the output and, with log, the logsumexp of a problem, without any check.

    Several layers can share the problem and the bias, which `attention` would check in each.

    Args:
        query: (batch, heads, queries, head_dim), the problem's shape.
        key: (batch, key heads, keys, head_dim), or `QuantizedRows`.
        value: as key.
        bias: the bias, checked against the problem, as `to_kernel_bias` returns it: of NumPy arrays
            for the core, else of tensors like query in autocast's dtype.
        problem: shape, mask, padding and positions.
        scale: the factor of q.k.
        factors: factors beside the scale, (1 or batch, 1 or heads, queries), in the bias's
            framework and dtype, or None.
        way: how the call is computed: `way_of` query, key, value and the bias's parameters.
        skip_tolerance: the argument of `attention`.
        norms: a `KeyNorms` of these keys; in the core only, with all keys at default positions and
            without exempt tokens.
        dropout: the dropout of weights, or None.
        log: whether to return the logsumexp.

    Returns:
        The output, and the logsumexp as `attention` returns it, or None.
    """
    if way is Way.CORE:
        attend_now = prepared_in_core(bias, problem, scale, factors, skip_tolerance=skip_tolerance)
        output, logsumexp = attend_now(query, key, value, norms=norms, dropout=dropout, log=log)
    else:
        query, key, value = in_autocast_dtype(query, key, value)
        call = AttentionCall(
            query, key, value, bias, problem, way, None, scale, skip_tolerance,
            factors=factors, dropout=dropout,
        )  # fmt: skip
        output, logsumexp, _ = attend(call, log=log)
    return output, rounded_logsumexp(logsumexp, query) if log else None


def prepared_in_core(
    bias: KernelBias,
    problem: Problem,
    scale: float,
    factors: Any = None,
    *,
    skip_tolerance: float | None = 0.0,
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that attends in the core, for layers with the same problem and bias.

    Args:
        bias: of NumPy arrays, as the other arguments of `attend_prepared`.
        problem: shape, mask, padding and positions.
        scale: the factor of q.k.
        factors: factors beside the scale, or None.
        skip_tolerance: the argument of `attention`.

    Returns:
        A function of query, key and value, and by name of `norms`, `dropout` and `log`, which
        returns the output, and the logsumexp in float64 with `log`, else None.
    """
    rule = core_rule(problem.mask, scale, skip_tolerance)
    call = AttentionCall(
        None, None, None, bias, problem, Way.CORE, rule, scale, skip_tolerance, factors=factors
    )
    subsets = key_subsets(call)
    if len(subsets) > 1:
        return partial(_attend_call, call)
    return partial(attend_in_core, subsets[0].bias, rule, core_tokens(call, subsets[0]))


def _attend_call(
    call: AttentionCall,
    query: Any,
    key: Any,
    value: Any,
    *,
    log: bool = False,
    **others: Any,
) -> tuple[Any, Any]:
    """Return output and logsumexp of a call with these inputs."""
    return forward(call.with_inputs(query, key, value)._replace(**others), log=log)[:2]
