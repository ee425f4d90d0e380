"""Checks of the torch modules' arguments, and of calls that torch traces."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases import checks as bias_checks


def known_positions(*positions: Any) -> None:
    """That no positions are given where torch is tracing and a table's length depends on them."""
    if any(x is not None for x in positions):
        raise ValueError(
            "query_positions and key_positions must be None where torch traces a bias over "
            "distance: pass a DistanceTable, which knows its distances"
        )


def slopes_per_head(value: Any, heads: int) -> None:
    """Slopes (heads,) of a module, for whatever comes in."""
    bias_checks.slopes("slopes", value, heads)
    if value.ndim != 1:
        raise ValueError(f"slopes must have shape ({heads},), got {tuple(value.shape)}")


def embedding_per_head(size: int, heads: int) -> None:
    """That each head gets no more of an embedding than the kernels have scratch memory for."""
    if size // heads > _checks.MAX_HEAD_DIM:
        most = _checks.MAX_HEAD_DIM * heads
        raise ValueError(f"embed_dim must be at most {most} for {heads} heads, got {size}")


def embeddings(q: Any, k: Any, v: Any, mask: Any, size: int) -> None:
    """Inputs (batch, length, size) of a module, and a mask (batch, keys), that fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not _arrays.is_tensor(x):
            raise TypeError(f"{name} must be a torch tensor, got {x!r}")
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


def constant_scaling(scaling: Any) -> None:
    """A scaling that tracing can take for a constant."""
    known = scaling is None or getattr(scaling, "alibi_type", None) in ("linear", "ntk")
    if not known:
        raise ValueError(
            "scaling must be None, Interpolation or NTK where torch traces attention, got "
            f"{scaling!r}: pass ALiBi(num_heads, slopes=na.alibi_slopes(...))"
        )
