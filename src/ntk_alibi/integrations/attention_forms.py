"""The forms of attention of a layer that attends by a pass: fused and eager.

Fused is `ntk_alibi.attention`, which forms no matrix of queries x keys; eager forms all weights,
and may return them.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn import functional as F

from ntk_alibi._torch_state import Way, in_autocast_dtype, is_recorded, way_of
from ntk_alibi.fused.attention import compute_call
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.core_problem import core_problems
from ntk_alibi.fused.dropout import Dropout, checked_dropout
from ntk_alibi.fused.forward import compute_in_core, rounded_logsumexp, run_core
from ntk_alibi.fused.gradients import AttentionGradients, ForwardResults, compute_gradients
from ntk_alibi.fused.merge import merge, merge_checked
from ntk_alibi.fused.tensors.merging import part_gradients
from ntk_alibi.integrations.caches import ReadAsHeld
from ntk_alibi.integrations.forward_pass import KeyRange, LayerCall, Pass
from ntk_alibi.masks import ALL, Cut


def compute_output(attend: Any, forward_pass: Pass, call: LayerCall) -> tuple[torch.Tensor, None]:
    """Return the output of a layer, and no weights."""
    query, ranges, bias = call.query, None, cast(Any, None)
    way = way_of(query, call.key, call.value)
    if way is Way.CORE and not torch.is_grad_enabled():
        ranges = forward_pass.prepared.get((attend.table, call.scale))
    if ranges is None:
        bias = forward_pass.bias_of(attend, call.rows)
        way = way_of(query, call.key, call.value, bias=bias)
    in_core = way is Way.CORE
    as_held = in_core and isinstance(call.cache, ReadAsHeld)
    append = call.cache.append if as_held else None
    key, value, _ = attend.with_cached(forward_pass, call, append)
    if ranges is None:
        if call.cache is not None and in_core and is_recorded(key, value):
            way, in_core = Way.OPERATOR, False  # the keys before these are trained, as a prefix is
        ranges = forward_pass.ranges(bias, None if in_core else query)
        if in_core:
            factors = forward_pass.factors(None)
            ranges = [
                part._replace(core=core_problems(part.bias, part.problem, call.scale, 0.0, factors))
                for part in ranges
            ]
            if forward_pass.biases_shared and not torch.is_grad_enabled():
                forward_pass.prepared[attend.table, call.scale] = ranges
    norms, dropped = None, None
    if as_held and in_core and any(part.keeps_norms for part in ranges):
        norms = call.cache.norms(attend.index)
    if call.dropout:
        dropped = checked_dropout(call.dropout, call.seed, query, forward_pass.problem.shape[3])
    if in_core and len(ranges) == 1 and dropped is None:
        return run_core(ranges[0].core, query, key, value, norms=norms)[0], None
    call = call._replace(key=key, value=value)
    return _of_ranges(forward_pass, ranges, call, way, dropped, norms), None


def _of_ranges(
    forward_pass: Pass,
    ranges: list[KeyRange],
    call: LayerCall,
    way: Way,
    dropped: Dropout | None,
    norms: Any,
) -> torch.Tensor:
    """Return the output of attention to all ranges of keys together."""
    results, joins = [], len(ranges) > 1
    for part in ranges:
        key, value, dropout = _of_keys(call, part.keys, dropped)
        inputs = call.query, key, value
        if way is Way.CORE:
            kept = norms if part.keeps_norms else None
            result = run_core(part.core, *inputs, norms=kept, dropout=dropout, log=joins)
        else:
            query, key, value = in_autocast_dtype(*inputs)
            given = query, key, value, part.bias, part.problem, way, call.scale, 0.0
            factors = forward_pass.factors(call.query)
            whole = AttentionCall(*given, factors=factors, dropout=dropout)
            result = compute_call(whole, log=joins)[:2]
        results.append(result)
    if not joins:
        return cast(torch.Tensor, results[0][0])
    outputs, logsumexps = zip(*results, strict=True)
    output, _ = merge(outputs, [rounded_logsumexp(x, call.query) for x in logsumexps])
    return cast(torch.Tensor, output)


def _of_keys(call: LayerCall, keys: slice, dropped: Dropout | None) -> tuple[Any, Any, Any]:
    """Return some of the keys and values of a call, and the dropout of their weights."""
    if keys == ALL:
        return call.key, call.value, dropped
    cut = dropped and dropped.cut(Cut(keys=keys))
    return call.key[:, :, keys], call.value[:, :, keys], cut


def compute_gradients_of_layer(
    attend: Any, forward_pass: Pass, call: LayerCall, gradient: torch.Tensor
) -> AttentionGradients:
    """Return the gradients of query, of all keys and values, and of the table's distances if rows.

    The weights are computed again: the forward pass keeps nothing but its inputs.
    """
    ranges = forward_pass.ranges(forward_pass.bias_of(attend, call.rows), None)
    factors, learns = forward_pass.factors(None), call.rows is not None
    dropped = checked_dropout(call.dropout, call.seed, call.query, forward_pass.problem.shape[3])
    calls = []
    for part in ranges:
        key, value, dropout = _of_keys(call, part.keys, dropped)
        inputs = call.query, key, value, part.bias, part.problem, Way.CORE, call.scale, 0.0
        calls.append(AttentionCall(*inputs, factors=factors, dropout=dropout))
    results = [compute_in_core(x)[:2] for x in calls]
    if len(calls) == 1:
        known = ForwardResults(*results[0], gradient)
        return compute_gradients(calls[0], known, bias_gradient=learns)
    merged = merge_checked(*zip(*results, strict=True))
    of_keys, of_values = torch.zeros_like(call.key), torch.zeros_like(call.value)
    found = []
    for part, one, result in zip(ranges, calls, results, strict=True):
        known = ForwardResults(*result, *part_gradients(result, merged, gradient))
        found.append(compute_gradients(one, known, bias_gradient=learns))
        of_keys[:, :, part.keys] += found[-1].key
        of_values[:, :, part.keys] += found[-1].value
    of_query, table = sum(x.query for x in found), None
    if learns:
        table = sum(cast(Any, x.table) for x in found)
    return AttentionGradients(of_query, of_keys, of_values, None, None, None, table)


def compute_output_and_weights(
    attend: Any, forward_pass: Pass, call: LayerCall
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of a layer, and the weights, with a column for each place of a cache."""
    if call.seed is not None:
        raise ValueError(
            "attention must stay 'fused' in a compiled graph that drops weights, got 'eager'"
        )
    query = call.query
    bias = forward_pass.bias_of(attend, call.rows)
    key, value, beyond = attend.with_cached(forward_pass, call)
    added = forward_pass.memo(bias, query.dtype, _added, forward_pass, bias, query)
    factors = forward_pass.factors(query)
    factors = None if factors is None else factors[..., None].float()
    output, weights = softmax_attention(query, key, value, added, factors, call.scale, call.dropout)
    return output, F.pad(weights, (0, beyond)) if beyond else weights


def _added(forward_pass: Pass, bias: Any, like: torch.Tensor) -> torch.Tensor:
    """Return the bias of all pairs, float32, its dtype's least value for hidden keys."""
    values, seen = forward_pass.pairs(bias, like)
    return values.masked_fill(~seen, torch.finfo(values.dtype).min)


def softmax_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    factors: torch.Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention output and all weights.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, 1 or heads, keys, head_dim).
        value: (batch, 1 or heads, keys, head_dim).
        bias: (1 or batch, 1 or heads, 1 or queries, keys), float32, very low for hidden keys.
        factors: factors of the products, (1 or batch, 1 or heads, queries, 1), or None.
        scale: another factor of the products.
        dropout: the probability of dropping a weight.
    """
    key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))
    precise = torch.promote_types(query.dtype, bias.dtype)
    scores = (query @ key.transpose(-1, -2)).to(precise) * scale
    scores = (scores if factors is None else scores * factors) + bias
    weights = torch.softmax(scores, dim=-1).to(query.dtype)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights @ value, weights
