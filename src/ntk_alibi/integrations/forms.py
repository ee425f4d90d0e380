"""Key ranges and unpadded rows, from which the attention forms are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.integrations.caches.growing import GrowingLayer

Index: TypeAlias = slice | torch.Tensor


@dataclass(frozen=True)
class UnpaddedRows:
    """Batch rows whose real tokens stand in the same columns: a problem without padding.

    Where positions count real tokens, leaving out the padded columns makes them contiguous.
    """

    batch: slice
    queries: Index
    keys: Index
    slopes: torch.Tensor  # float32 (1 or batch, heads, 1 or queries)
    positions: torch.Tensor  # of the keys


@dataclass(frozen=True)
class KeyRange:
    """Some columns of keys, and how `ntk_alibi.attention` is to see them."""

    keys: slice
    options: dict[str, Any]
    whole: bool = False  # all keys at their own columns, none hidden but by the options

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Its keys or values, of (batch, heads, keys, head_dim)."""
        return x if self.keys == slice(None) else x[:, :, self.keys]


def kept_norms(cache: Any, layer: int | None) -> KeyNorms | None:
    """Of a `GrowingCache`."""
    held = [] if layer is None else getattr(cache, "layers", [])[layer : layer + 1]
    return held[0].norms() if held and isinstance(held[0], GrowingLayer) else None


def columns_of(real: torch.Tensor) -> Index:
    """The columns of real tokens, as a slice where they are contiguous, which copies nothing."""
    columns = real.nonzero().flatten()
    if len(columns) == 0:
        return slice(0, 0)
    first, last = int(columns[0]), int(columns[-1])
    return slice(first, last + 1) if last - first + 1 == len(columns) else columns
