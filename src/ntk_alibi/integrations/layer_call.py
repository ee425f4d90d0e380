"""A call of an attention layer of a patched model."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch

#: The batch, the number of new tokens, and the number of keys besides a cache's.
Sizes: TypeAlias = tuple[int, int, int]


class LayerCall(NamedTuple):
    """The tensors and options of a call of `Attend`, in all forms of attention.

    Attributes:
        query: (batch, heads, queries, head_dim), the last query at the last key.
        key: the new keys, (batch, heads or a divisor of them, keys, head_dim).
        value: as key.
        mask: `Tokens`, a mask, or None.
        cache: the cache that holds the keys before these, or None.
        scale: the factor of the products.
        dropout: the probability of dropping a weight.
        weights: whether the caller wants the weights.
        seed: the seed of dropout in a graph, or None to draw one.
        rows: the rows of the layer's table in a graph, or None to read them.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: Any
    cache: Any
    scale: float
    dropout: float = 0.0
    weights: bool = False
    seed: int | None = None
    rows: torch.Tensor | None = None

    @property
    def sizes(self) -> Sizes:
        """The sizes of the call."""
        return self.query.shape[0], self.query.shape[2], self.key.shape[2]
