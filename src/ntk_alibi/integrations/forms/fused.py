"""The form of attention that forms no matrix of queries x keys: `ntk_alibi.attention`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from ntk_alibi._torch_state import Way, is_recorded, way_of
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.core_problem import core_problems
from ntk_alibi.fused.dropout import Dropout, checked_dropout
from ntk_alibi.fused.forward import compute_in_core, rounded_logsumexp, run_core
from ntk_alibi.fused.gradients import ForwardResults, compute_gradients
from ntk_alibi.fused.merge import merge, merge_checked
from ntk_alibi.fused.prepared import compute_prepared
from ntk_alibi.fused.tensors.merging import part_gradients
from ntk_alibi.integrations.caches import ReadAsHeld
from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.masks import ALL, Cut


class PreparedPart(NamedTuple):
    """What attends to some columns of the keys.

    Attributes:
        keys: the columns.
        compute: a function of query, key and value, and by name of norms, dropout and log, which
            returns the output, and the logsumexp with log.
        keeps_norms: whether norms of a cache are of use.
    """

    keys: slice
    compute: Callable[..., tuple[Any, Any]]
    keeps_norms: bool


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
    way, parts, bias, norms = way_of(query, key, value), None, None, None
    if way is Way.CORE and not torch.is_grad_enabled():
        parts = forward_pass.prepared.get((layer.shares, scale))
    if parts is None:
        bias = forward_pass.bias_of(layer.number, layer.table, rows)
        way = way_of(query, key, value, bias=bias)
    append = None
    if way is Way.CORE and isinstance(cache, ReadAsHeld):
        append, norms = cache.append, cache.norms
    key, value, _ = layer.with_cached(forward_pass, key, value, cache, append)
    if parts is None:
        if cache is not None and way is Way.CORE and is_recorded(key, value):
            way = Way.OPERATOR  # the keys before these are trained: a prefix, for instance
        parts = _prepare(layer, forward_pass, bias, query, scale, way)
    kept = None
    if norms is not None and any(part.keeps_norms for part in parts):
        kept = norms(layer.number)
    columns = forward_pass.problem.shape[3]
    dropped = checked_dropout(dropout, seed, query, columns) if dropout else None
    if dropped is None and len(parts) == 1:
        return parts[0].compute(query, key, value, norms=kept)[0], None
    return _compute_parts(parts, dropped, query, key, value, kept), None


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
    factors, learns = forward_pass.factors(None), rows is not None
    dropped = checked_dropout(dropout, seed, query, forward_pass.problem.shape[3])
    calls = [
        AttentionCall(
            query, key[:, :, part.keys], value[:, :, part.keys], part.bias, part.problem, Way.CORE,
            scale, 0.0, factors=factors, dropout=dropped and dropped.cut(Cut(keys=part.keys)),
        )
        for part in parts
    ]  # fmt: skip
    results = [compute_in_core(call)[:2] for call in calls]
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
    layer: Any, forward_pass: Pass, bias: Any, query: Any, scale: float, way: Way
) -> list[PreparedPart]:
    """Return what attends in a layer to each part of the keys.

    Layers with the same bias share it where torch records nothing.
    """
    in_core = way is Way.CORE
    like = None if in_core else query
    factors = forward_pass.factors(like)
    parts = []
    for part in forward_pass.parts(bias, like):
        shared = part.bias, part.problem, scale
        if in_core:
            compute = partial(run_core, core_problems(*shared, 0.0, factors))
        else:
            compute = partial(compute_prepared, *shared, factors, way)
        parts.append(PreparedPart(part.keys, compute, in_core and part.keeps_norms))
    if in_core and forward_pass.biases_shared and not torch.is_grad_enabled():
        forward_pass.prepared[layer.shares, scale] = parts
    return parts


def _compute_parts(
    parts: list[PreparedPart],
    dropped: Dropout | None,
    query: torch.Tensor,
    key: Any,
    value: Any,
    norms: Any,
) -> torch.Tensor:
    """Return the output of attention to all parts together."""
    results = []
    for keys, compute, keeps_norms in parts:
        whole = keys == ALL
        output, logsumexp = compute(
            query,
            key if whole else key[:, :, keys],
            value if whole else value[:, :, keys],
            norms=norms if keeps_norms else None,
            dropout=dropped and dropped.cut(Cut(keys=keys)),
            log=len(parts) > 1,
        )
        results.append((output, logsumexp))
    if len(results) == 1:
        return cast(torch.Tensor, results[0][0])
    outputs, logsumexps = zip(*results, strict=True)
    output, _ = merge(outputs, [rounded_logsumexp(x, query) for x in logsumexps])
    return cast(torch.Tensor, output)
