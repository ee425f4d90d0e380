"""Checks of the arguments of pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stats(value: Any) -> None:
    """Check that value is the `Stats` of an attention call."""
    if not hasattr(value, "visited") or not hasattr(value, "visible"):
        raise TypeError(f"stats must come from attention(..., return_stats=True), got {value!r}")


def as_many(name: str, numbers: Any, count: int) -> NDArray[np.float64]:
    """Return `count` numbers as an array, with NaN for None."""
    array = np.array(list(numbers), np.float64)
    if array.shape != (count,):
        raise ValueError(f"{name} must be {count} numbers, got {array.size} ({numbers!r})")
    return array


def accuracies(name: str, value: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return value as an array of this shape whose entries are between 0 and 1, or NaN."""
    array = np.asarray(value, np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape (depths, lengths) = {shape}, got {array.shape}")
    if (array < 0).any() or (array > 1).any():
        raise ValueError(f"{name} must be between 0 and 1, got {array.min()} to {array.max()}")
    return array
