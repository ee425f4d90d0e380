"""Checks of the arguments of pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stats(value: Any) -> None:
    """Check that value is the `Stats` of an attention call."""
    if not hasattr(value, "visited") or not hasattr(value, "visible"):
        raise TypeError(f"stats must come from attention(..., return_stats=True), got {value!r}")


def some(things: Any) -> None:
    """Check that there is something to draw."""
    if not len(things):
        raise ValueError(f"a picture must show at least one scaling or bias, got {things!r}")


def as_many(name: str, numbers: Any, count: int) -> NDArray[np.float64]:
    """Return `count` numbers as an array, with NaN for None."""
    array = np.array(list(numbers), np.float64)
    if array.shape != (count,):
        raise ValueError(f"{name} must be {count} numbers, got {array.size} ({numbers!r})")
    return array


#: Numbers that a picture may be computed from: 2 GiB in float32.
MOST_NUMBERS = 2**29

#: Cells that a picture may show; more take minutes to draw, and no screen has as many.
MOST_CELLS = 2**24


def most(what: str, count: int, limit: int) -> None:
    """Check a number of numbers or cells before they are computed."""
    if count > limit:
        raise ValueError(f"{what} must be at most {limit} in a picture, got {count}")


def accuracies(name: str, value: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return value as an array of this shape whose entries are between 0 and 1, or NaN."""
    array = np.asarray(value, np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape (depths, lengths) = {shape}, got {array.shape}")
    if (array < 0).any() or (array > 1).any():
        raise ValueError(f"{name} must be between 0 and 1, got {array.min()} to {array.max()}")
    return array
