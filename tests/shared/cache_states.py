"""Random keys and values of caches, and operations on their rows."""

from __future__ import annotations

from typing import Any

import torch


def states(
    tokens: int, seed: int = 0, *, head_dim: int = 8, dtype: Any = torch.float32
) -> list[torch.Tensor]:
    """Return keys and values of two rows and three heads."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, tokens, head_dim)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]


def change_rows(cache: Any, head_dim: int = 8) -> None:
    """Fill a cache, and reorder, repeat, select and crop its rows between updates."""
    cache.update(*states(10, head_dim=head_dim), 0)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.update(*states(2, 1, head_dim=head_dim), 0)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    cache.update(*states(3, 2, head_dim=head_dim), 0)
    cache.crop(-4)
    cache.update(*states(5, 3, head_dim=head_dim), 0)
