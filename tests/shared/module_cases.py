"""Inputs and the plain formula of the torch module."""

from __future__ import annotations

from typing import Any

import torch

import ntk_alibi as na

HEADS, SIZE, QUERIES, KEYS = 6, 48, 20, 33
MASK = torch.arange(KEYS) >= torch.tensor([[0], [9]])  # left padding


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, length, SIZE) for length in (QUERIES, KEYS, KEYS)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    ]


def module(*args: Any, seed: int = 1, **options: Any) -> na.AlibiAttention:
    """Return a module with reproducible values."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return na.AlibiAttention(HEADS, SIZE, *args, **options)


DENSE = torch.randn(HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(5))
