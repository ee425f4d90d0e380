"""Checks of rotary embeddings and of log-n scaling."""

from __future__ import annotations

from typing import Any

from ntk_alibi import _arrays, _checks


def rotary_dim(value: Any, head_dim: int) -> int:
    """Return the even number of channels that are rotated; all channels if None."""
    name = "head_dim" if value is None else "rotary_dim"
    channels = _checks.integer(
        name, head_dim if value is None else value, minimum=1, maximum=head_dim
    )
    if channels % 2:
        raise ValueError(f"{name} must be even for rotary positions, got {channels}")
    return channels


def constant_stretch(value: Any, pairs: int) -> None:
    """Check that a scaling can stretch rotary positions with this number of channel pairs."""
    kind = getattr(value, "alibi_type", None)
    if isinstance(value, type) or kind not in ("linear", "ntk"):
        raise TypeError(f"scaling must be an Interpolation or an NTK, got {value!r}")
    if kind == "ntk" and pairs < 2:
        raise ValueError("scaling must be an Interpolation for one pair of channels, got an NTK")


def rotary_input(x: Any, head_dim: int) -> None:
    """Check vectors for rotation, (batch, heads, length, head_dim)."""
    _checks.attention_input("x", x)
    _checks.floating_dtype(x.dtype, (*_arrays.CORE_DTYPES, "float64"), "x")
    if x.shape[3] != head_dim:
        raise ValueError(f"x must have head_dim {head_dim}, got {tuple(x.shape)}")


def train_length(name: str, value: Any) -> int:
    """Return the checked training length, at least 2, since its logarithm is a divisor."""
    return _checks.integer(name, value, minimum=2)
