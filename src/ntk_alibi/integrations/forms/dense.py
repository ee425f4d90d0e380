"""Attention that forms all weights, in plain torch."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def attend_densely(
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
