"""Checks of the torch modules' arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases import checks as bias_checks


def slopes_per_head(value: Any, heads: int) -> None:
    """Check the slopes (heads,) of a module."""
    bias_checks.slopes("slopes", value, heads)
    if value.ndim != 1:
        raise ValueError(f"slopes must have shape ({heads},), got {tuple(value.shape)}")


def embed_dim(value: Any, heads: int) -> int:
    """Return the channels of a module, which are at least as many as its heads."""
    size = _checks.integer("embed_dim", value, minimum=1)
    if size < heads:
        raise ValueError(
            f"embed_dim must be between {heads} and {_checks.MAX_LENGTH}, got {size} for {heads} "
            "heads: the order is AlibiAttention(num_heads, embed_dim), other than in "
            "nn.MultiheadAttention"
        )
    return size


def embedding_per_head(size: int, heads: int) -> None:
    """Check that the channels of a head fit into the kernels' scratch memory."""
    if size // heads > _checks.MAX_HEAD_DIM:
        most = _checks.MAX_HEAD_DIM * heads
        raise ValueError(f"embed_dim must be at most {most} for {heads} heads, got {size}")


def embeddings(q: Any, k: Any, v: Any, mask: Any, size: int) -> None:
    """Check that inputs (batch, length, size) of a module and a mask (batch, keys) fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not _arrays.is_tensor(x):
            raise TypeError(f"{name} must be a torch tensor, got {x!r}")
        _checks.plain(name, x)
        if x.ndim != 3 or x.shape[2] != size:
            raise ValueError(
                f"{name} must have shape (batch, length, {size}), got {tuple(x.shape)}"
            )
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k must have q's batch {q.shape[0]}, got {k.shape[0]}")
    if v.shape != k.shape:
        raise ValueError(f"v must have k's shape {tuple(k.shape)}, got {tuple(v.shape)}")
    if mask is not None:
        _mask_of_keys(mask, tuple(k.shape[:2]))


def _mask_of_keys(mask: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(mask, np.ndarray) and not _arrays.is_tensor(mask):
        raise TypeError(f"mask must be None, a torch tensor or a NumPy array, got {mask!r}")
    if tuple(mask.shape) != shape:
        raise ValueError(f"mask must have shape (batch, keys) = {shape}, got {tuple(mask.shape)}")


def bias(value: Any, heads: int, *, causal: bool) -> None:
    """Check the bias object of a module, or None."""
    if hasattr(value, "kernel_bias"):
        bias_checks.fitting_bias(value, heads, causal=causal)
    elif value is not None:
        bias_checks.dense_numbers("bias", value)
