"""Dropout of weights for torch's operators, whose seed is a tensor: traces draw it at each call."""

from __future__ import annotations

from typing import Any

import torch

from ntk_alibi.fused.dropout import Dropout


def seed_of(dropout: Dropout | None) -> torch.Tensor | None:
    """Return the seed as an int64 tensor, or None without dropout."""
    if dropout is None:
        return None
    if isinstance(dropout.seed, torch.Tensor):
        return dropout.seed
    return torch.tensor((dropout.seed + 2**63) % 2**64 - 2**63)


def numbers_of(dropout: Dropout | None) -> list[int]:
    """Return all but the seed, [] without dropout."""
    return [] if dropout is None else [dropout.least_kept, *dropout[2:]]


def dropout_of(seed: Any, numbers: list[int]) -> Dropout | None:
    """Return the dropout from both."""
    return Dropout(numbers[0], seed, *numbers[1:]) if numbers else None


def kept_weights(dropout: Dropout, shape: tuple[int, ...]) -> torch.Tensor:
    """Return which weights (batch, heads, queries, keys) are kept, on the CPU."""
    kept: torch.Tensor = _kept_weights(seed_of(dropout), numbers_of(dropout), shape)
    return kept


@torch.library.custom_op(
    "ntk_alibi::kept_weights",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor seed, int[] dropout, SymInt[] shape) -> Tensor",
)
def _kept_weights(seed: torch.Tensor, numbers: list[int], shape: list[int]) -> torch.Tensor:
    batch, heads, queries, keys = shape
    kept = Dropout(numbers[0], seed, *numbers[1:]).kept((batch, heads, queries, keys))
    return torch.from_numpy(kept)


@_kept_weights.register_fake
def _(seed: torch.Tensor, numbers: list[int], shape: list[int]) -> torch.Tensor:
    return seed.new_empty(shape, dtype=torch.bool)


@_kept_weights.register_vmap
def _(
    info: Any, in_dims: tuple[Any, ...], seed: torch.Tensor, numbers: list[int], shape: list[int]
) -> tuple[torch.Tensor, int]:
    return torch.stack([_kept_weights(x, numbers, shape) for x in seed.unbind(in_dims[0])]), 0
