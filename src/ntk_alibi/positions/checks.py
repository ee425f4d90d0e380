"""Checks of rotary embeddings and of log-n scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ntk_alibi import _arrays, _checks
from ntk_alibi.scaling import checks as scaling_checks


def rotary_dim(value: Any, head_dim: int) -> int:
    """Return the even number of channels that are rotated; all channels if None."""
    name = "head_dim" if value is None else "rotary_dim"
    channels = _checks.integer(
        name, head_dim if value is None else value, minimum=1, maximum=head_dim
    )
    if channels % 2:
        raise ValueError(f"{name} must be even for rotary positions, got {channels}")
    return channels


def constant_stretch(value: Any) -> None:
    """Check that a scaling can stretch rotary positions."""
    scaling_checks.one_layer(value)
    if isinstance(value, type) or not hasattr(value, "stretch_rotary"):
        raise TypeError(f"scaling must be an Interpolation or an NTK, got {value!r}")


def rotary_input(x: Any, head_dim: int) -> None:
    """Check vectors for rotation, (batch, heads, length, head_dim)."""
    _checks.attention_input("x", x)
    _checks.floating_dtype(x.dtype, (*_arrays.CORE_DTYPES, "float64"), "x")
    if x.shape[3] != head_dim:
        raise ValueError(f"x must have head_dim {head_dim}, got {tuple(x.shape)}")


def train_length(name: str, value: Any) -> int:
    """Return the checked training length, at least 2, since its logarithm is a divisor."""
    return _checks.integer(name, value, minimum=2)


def log_n_length(value: Any) -> int:
    """Return the training length that `log_n` is, if it is no `LogN`."""
    if not isinstance(value, int | float | np.number):
        raise TypeError(f"log_n must be None, a training length or a LogN, got {value!r}")
    return train_length("log_n", value)


#: Greatest strength of log-n scaling: factors of 2^31 keys then stay within float32's range.
MOST_STRENGTH = 1e36


def strength(value: Any) -> float | tuple[float, ...]:
    """Return the checked strength of log-n scaling: a number, or a tuple of one for each head."""
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes):
        numbers = np.asarray(value)
        if numbers.ndim != 1 or not len(numbers):
            raise ValueError(f"strength must be a number, or one for each head, got {value!r}")
        return tuple(map(_one_strength, numbers.tolist()))
    return _one_strength(value)


def _one_strength(value: Any) -> float:
    number = _checks.finite("strength", value, minimum=0.0)
    if number > MOST_STRENGTH:
        raise ValueError(f"strength must be at most {MOST_STRENGTH:g}, got {value!r}")
    return number


def strength_per_head(given: int, heads: int) -> None:
    """Check that strengths are those of query's heads."""
    if given != heads:
        raise ValueError(
            f"strength of log_n must be one number, or one for each of {heads} heads, got {given}"
        )
