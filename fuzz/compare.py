"""Comparison of results with the oracle's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.bounds import Interval
from fuzz.drawn.arrays import as_float64, dtype_of


class WrongError(AssertionError):
    """A result, or an error, that the package must not give."""


def compare(
    name: str, result: Any, expected: Interval, dtype: str, ignored: NDArray[np.bool_] | None = None
) -> None:
    """Check dtype, shape and values of a result.

    Raises:
        WrongError: one of them is wrong; the message names the worst value.
    """
    if dtype_of(result) != dtype or tuple(result.shape) != expected.exact.shape:
        raise WrongError(
            f"{name}: got {dtype_of(result)} {tuple(result.shape)}, "
            f"expected {dtype} {expected.exact.shape}"
        )
    values = as_float64(result)
    wrong = expected.outside(values, dtype)
    if ignored is not None:
        wrong &= ~ignored.reshape(ignored.shape + (1,) * (wrong.ndim - ignored.ndim))
    if not wrong.any():
        return
    error = np.where(wrong, np.abs(values - expected.exact), -1.0)
    worst = np.argmax(np.where(np.isnan(error), np.inf, error))
    at = tuple(map(int, np.unravel_index(worst, error.shape)))
    low, high = (x[at] for x in expected.rounded(dtype))
    raise WrongError(
        f"{name}: {int(wrong.sum())} of {wrong.size} values are wrong; at {at} got {values[at]}, "
        f"expected {expected.exact[at]}, between {low} and {high}"
    )


def exactly(name: str, result: Any, expected: Any) -> None:
    """Check that two results are equal bit for bit, NaN included."""
    got, wanted = as_float64(result), as_float64(expected)
    if not np.array_equal(got, wanted, equal_nan=True):
        raise WrongError(f"{name}: got {got!r}, expected exactly {wanted!r}")
