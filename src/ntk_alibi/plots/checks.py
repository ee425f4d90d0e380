"""Checks of the arguments of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def stats(value: Any) -> None:
    """Check that value is the `Stats` of an attention call."""
    if not hasattr(value, "visited") or not hasattr(value, "visible"):
        raise TypeError(f"stats must come from attention(..., return_stats=True), got {value!r}")


def axes(ax: Any) -> None:
    """Check that the axes to draw into are matplotlib's, or None."""
    if ax is not None and not hasattr(ax, "get_xlabel"):
        raise TypeError(f"ax must be one matplotlib Axes, or None, got {type(ax).__name__}")


def curves(name: str, value: Any) -> None:
    """Check a mapping from labels to what each curve shows."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping from labels to numbers, got {value!r}")
    if not value:
        raise ValueError(f"{name} must have at least one label, got {value!r}")


def numbers(name: str, value: Any) -> NDArray[np.float64]:
    """Return an argument that must be a row of numbers."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = np.zeros(())
    if array.ndim != 1:
        raise TypeError(f"{name} must be a row of numbers, got {value!r}")
    return array


def pair(name: str, value: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return an argument that must be two rows of as many numbers."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be a pair of rows of numbers, got {value!r}")
    first, second = (numbers(name, row) for row in value)
    if len(first) != len(second):
        raise ValueError(
            f"{name} must be two rows of one length, got {len(first)} and {len(second)} numbers"
        )
    return first, second


def summary(value: Any, *needed: str) -> None:
    """Check that a value is the summary of a study, with some entries."""
    if not isinstance(value, Mapping):
        raise TypeError(f"summary must be the summary of a study, a dict, got {value!r}")
    if absent := [name for name in ("methods", *needed) if name not in value]:
        raise ValueError(
            f"summary must have {', '.join(absent)}, got one with {', '.join(value) or 'nothing'}"
        )


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
