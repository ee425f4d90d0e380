"""Attention for callers that have checked and converted the arguments."""

from __future__ import annotations

from typing import Any

from ntk_alibi._torch_state import Way, in_autocast_dtype
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.fused.attention import compute_call
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.dropout import Dropout
from ntk_alibi.masks import Problem


def compute_prepared(
    bias: KernelBias,
    problem: Problem,
    scale: float,
    factors: Any,
    way: Way,
    query: Any,
    key: Any,
    value: Any,
    *,
    norms: Any = None,
    dropout: Dropout | None = None,
    log: bool = False,
) -> tuple[Any, Any]:
    """Return output and logsumexp (None without log) of a problem, without any check.

    What does not depend on query, key and value comes first. In the core, `run_core` does the same
    with the objects that `core_problems` makes of bias, problem, scale and factors.

    Args:
        bias: the bias, checked against the problem, as `to_kernel_bias` returns it: of NumPy arrays
            for the core, else of tensors like query in autocast's dtype.
        problem: shape, mask, padding and positions.
        scale: the factor of q.k.
        factors: factors beside the scale, (1 or batch, 1 or heads, queries), in the bias's
            framework and dtype, or None.
        way: how the call is computed: `way_of` query, key, value and the bias's parameters.
        query: (batch, heads, queries, head_dim), the problem's shape.
        key: (batch, key heads, keys, head_dim), or `QuantizedRows`.
        value: as key.
        norms: a `KeyNorms` of these keys; in the core only, with all keys at default positions and
            without exempt tokens.
        dropout: the dropout of weights, or None.
        log: whether to return the logsumexp.
    """
    if way is not Way.CORE:
        query, key, value = in_autocast_dtype(query, key, value)
    call = AttentionCall(
        query, key, value, bias, problem, way, scale, 0.0,
        factors=factors, norms=norms, dropout=dropout,
    )  # fmt: skip
    return compute_call(call, log=log)[:2]
