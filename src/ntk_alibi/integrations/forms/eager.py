"""The form of attention that forms all weights, and may return them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ntk_alibi.integrations.forms.dense import attend_densely
from ntk_alibi.integrations.passes.base import Pass


def attend(
    layer: Any,
    made: Pass,
    query: Any,
    key: Any,
    value: Any,
    cache: Any,
    scale: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of a layer, and the weights, with a column for each place of a cache.

    Args:
        layer: the `Attend` of the layer.
        made: the pass.
        query: (batch, heads, queries, head_dim).
        key: the new keys, (batch, heads or a divisor of them, keys, head_dim).
        value: as key.
        cache: the cache that holds the keys before these, or None.
        scale: the factor of the products.
        dropout: the probability of dropping a weight.
    """
    bias = made.bias_of(layer.number, layer.table)
    key, value, beyond = layer.with_cached(made, key, value, cache)
    added = made.memo(bias, query.dtype, _added, made, bias, query)
    factors = made.factors(query)
    factors = None if factors is None else factors[..., None].float()
    output, weights = attend_densely(query, key, value, added, factors, scale, dropout)
    return output, F.pad(weights, (0, beyond)) if beyond else weights


def _added(made: Pass, bias: Any, like: torch.Tensor) -> torch.Tensor:
    """Return the bias of all pairs, float32, its dtype's least value for hidden keys."""
    values, seen = made.pairs(bias, like)
    return values.masked_fill(~seen, torch.finfo(values.dtype).min)
