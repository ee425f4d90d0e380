"""Dropout of weights for torch's operators.

An operator takes a dropout as its seed, a tensor that a traced program draws at each call, and a
list of its other fields, which are integers.
"""

from __future__ import annotations

from typing import Any

import torch

from ntk_alibi.fused.dropout import Dropout


def to_seed(dropout: Dropout | None) -> torch.Tensor | None:
    """Return the seed as an int64 tensor, or None without dropout."""
    if dropout is None:
        return None
    if isinstance(dropout.seed, torch.Tensor):
        return dropout.seed
    return torch.tensor((dropout.seed + 2**63) % 2**64 - 2**63)


def to_integers(dropout: Dropout | None) -> list[int]:
    """Return all fields but the seed; without dropout zeros, since AOTInductor loses []."""
    return [0] * 5 if dropout is None else [dropout.least_kept, *dropout[2:]]


def make_dropout(seed: Any, integers: list[int]) -> Dropout | None:
    """Return the dropout of a seed, or None, and the integers of `to_integers`."""
    return None if seed is None else Dropout(integers[0], seed, *integers[1:])


def kept_weights(dropout: Dropout, shape: tuple[int, ...]) -> torch.Tensor:
    """Return which weights (batch, heads, queries, keys) are kept, bool on the CPU."""
    kept: torch.Tensor = _kept_weights(to_seed(dropout), to_integers(dropout), shape)
    return kept


@torch.library.custom_op(
    "ntk_alibi::kept_weights",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor seed, int[] dropout, SymInt[] shape) -> Tensor",
)
def _kept_weights(seed: torch.Tensor, integers: list[int], shape: list[int]) -> torch.Tensor:
    batch, heads, queries, keys = shape
    kept = Dropout(integers[0], seed, *integers[1:]).kept((batch, heads, queries, keys))
    return torch.from_numpy(kept)


@_kept_weights.register_fake
def _(seed: torch.Tensor, integers: list[int], shape: list[int]) -> torch.Tensor:
    return seed.new_empty(shape, dtype=torch.bool)


@_kept_weights.register_vmap
def _(
    info: Any, in_dims: tuple[Any, ...], seed: torch.Tensor, integers: list[int], shape: list[int]
) -> tuple[torch.Tensor, int]:
    return torch.stack([_kept_weights(x, integers, shape) for x in seed.unbind(in_dims[0])]), 0
