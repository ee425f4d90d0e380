"""The form of attention that forms no matrix of queries x keys: `ntk_alibi.attention`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch

from ntk_alibi._torch_state import Way, is_recorded, way_of
from ntk_alibi.fused.call import AttentionCall, core_rule
from ntk_alibi.fused.dropout import Dropout, checked_dropout
from ntk_alibi.fused.forward import forward
from ntk_alibi.fused.gradients import ForwardResults, compute_gradients
from ntk_alibi.fused.merge import merge, merge_checked
from ntk_alibi.fused.prepared import attend_prepared, prepared_in_core
from ntk_alibi.fused.tensors.merging import part_gradients
from ntk_alibi.integrations.caches import ReadAsHeld
from ntk_alibi.integrations.passes.base import Part, Pass
from ntk_alibi.masks import ALL, Cut

#: A function of query, key, value and `norms`, which returns the output first, and whether norms
#: are of use.
Prepared = tuple[Callable[..., tuple[Any, Any]], bool]


def compute_output(
    layer: Any,
    forward_pass: Pass,
    query: Any,
    key: Any,
    value: Any,
    cache: Any,
    scale: float,
    dropout: float,
    seed: int | None = None,
    rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None]:
    """Return the output of a layer, and no weights.

    Args:
        layer: the `Attend` of the layer.
        forward_pass: the pass.
        query: (batch, heads, queries, head_dim).
        key: the new keys, (batch, heads or a divisor of them, keys, head_dim).
        value: as key.
        cache: the cache that holds the keys before these, or None.
        scale: the factor of the products.
        dropout: the probability of dropping a weight.
        seed: the seed of dropout, or None to draw one.
        rows: the rows of the layer's table, or None to read them.
    """
    way, prepared, bias, norms = way_of(query, key, value), None, None, None
    if way is Way.CORE and not (dropout or torch.is_grad_enabled()):
        prepared = forward_pass.prepared.get((layer.shares, scale))
    if prepared is None:
        bias = forward_pass.bias_of(layer.number, layer.table, rows)
        way = way_of(query, key, value, bias=bias)
    append = None
    if way is Way.CORE and isinstance(cache, ReadAsHeld):
        append, norms = cache.append, cache.norms
    key, value, _ = layer.with_cached(forward_pass, key, value, cache, append)
    if prepared is None:
        if cache is not None and way is Way.CORE and is_recorded(key, value):
            way = Way.OPERATOR  # the keys before these are trained: a prefix, for instance
        columns = forward_pass.problem.shape[3]
        dropped = checked_dropout(dropout, seed, query, columns) if dropout else None
        prepared = _prepare(layer, forward_pass, bias, query, scale, dropped, way)
    compute, keeps_norms = prepared
    kept = norms(layer.number) if keeps_norms and norms is not None else None
    return compute(query, key, value, norms=kept)[0], None


def compute_gradients_of_layer(
    layer: Any,
    forward_pass: Pass,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    gradient: torch.Tensor,
    dropout: float,
    seed: int | None,
    rows: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any]:
    """Return the gradients of query, of all keys and values, and of the table's distances if rows.

    The weights are computed again: the forward pass keeps nothing but its inputs.
    """
    parts = forward_pass.parts(forward_pass.bias_of(layer.number, layer.table, rows), None)
    factors, tolerance, learns = forward_pass.factors(None), 0.0, rows is not None
    dropped = checked_dropout(dropout, seed, query, forward_pass.problem.shape[3])
    calls = [
        AttentionCall(
            query, key[:, :, part.keys], value[:, :, part.keys], part.bias, part.problem, Way.CORE,
            core_rule(part.problem.mask, scale, tolerance), scale, tolerance, factors=factors,
            dropout=dropped and dropped.cut(Cut(keys=part.keys)),
        )
        for part in parts
    ]  # fmt: skip
    results = [forward(call)[:2] for call in calls]
    if len(calls) == 1:
        known = ForwardResults(*results[0], gradient)
        of = compute_gradients(calls[0], known, bias_gradient=learns)
        return of.query, of.key, of.value, of.table
    merged = merge_checked(*zip(*results, strict=True))
    found = []
    for call, result in zip(calls, results, strict=True):
        known = ForwardResults(*result, *part_gradients(result, merged, gradient))
        found.append(compute_gradients(call, known, bias_gradient=learns))
    of_keys, of_values = torch.zeros_like(key), torch.zeros_like(value)
    for part, one in zip(parts, found, strict=True):
        of_keys[:, :, part.keys] += one.key
        of_values[:, :, part.keys] += one.value
    table: Any = sum(cast(Any, one.table) for one in found) if learns else None
    return sum(one.query for one in found), of_keys, of_values, table


def _prepare(
    layer: Any,
    forward_pass: Pass,
    bias: Any,
    query: Any,
    scale: float,
    dropped: Dropout | None,
    way: Way,
) -> Prepared:
    """Return what attends in a layer.

    Layers with the same bias share it where torch records nothing.
    """
    like = None if way is Way.CORE else query
    factors = forward_pass.factors(like)
    parts = forward_pass.parts(bias, like)
    keeps_norms = way is Way.CORE and parts[0].keeps_norms
    if way is not Way.CORE or dropped is not None or len(parts) > 1:
        keeps_norms = way is Way.CORE and any(part.keeps_norms for part in parts)
        return partial(_attend_to_parts, parts, scale, factors, dropped, way), keeps_norms
    prepared = prepared_in_core(parts[0].bias, parts[0].problem, scale, factors), keeps_norms
    if forward_pass.biases_shared and not torch.is_grad_enabled():
        forward_pass.prepared[layer.shares, scale] = prepared
    return prepared


def _attend_to_parts(
    parts: list[Part],
    scale: float,
    factors: Any,
    dropped: Dropout | None,
    way: Way,
    query: torch.Tensor,
    key: Any,
    value: Any,
    *,
    norms: Any = None,
) -> tuple[torch.Tensor, Any]:
    """Return output and logsumexp (or None) of `ntk_alibi.attention` to all parts together."""
    results = []
    for part in parts:
        keys, whole = part.keys, part.keys == ALL
        results.append(
            attend_prepared(
                query,
                key if whole else key[:, :, keys],
                value if whole else value[:, :, keys],
                part.bias,
                part.problem,
                scale,
                factors,
                way=way,
                norms=norms if part.keeps_norms else None,
                dropout=dropped and dropped.cut(Cut(keys=keys)),
                log=len(parts) > 1,
            )
        )
    return results[0] if len(results) == 1 else merge(*zip(*results, strict=True))
