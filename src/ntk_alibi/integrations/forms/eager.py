"""The form of attention that forms all weights, and may return them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ntk_alibi.integrations.layer_call import LayerCall
from ntk_alibi.integrations.passes.base import Pass


def compute_output_and_weights(
    attend: Any, forward_pass: Pass, call: LayerCall
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of a layer, and the weights, with a column for each place of a cache."""
    if call.seed is not None:
        raise ValueError(
            "attention must stay 'fused' in a compiled graph that drops weights, got 'eager'"
        )
    query = call.query
    bias = forward_pass.bias_of(attend.number, attend.table, call.rows)
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
