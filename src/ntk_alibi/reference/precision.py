"""Rounding to fewer bits, and the distance between two distributions."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]


def rounded(number: float, significant_bits: int) -> float:
    """Round a number to significant_bits, ties to even, with an unbounded exponent."""
    if number == 0.0:
        return 0.0
    unit = 2.0 ** (math.floor(math.log2(abs(number))) + 1 - significant_bits)
    return round(number / unit) * unit


def total_variation(scores: ArrayLike, other_scores: ArrayLike) -> Floats:
    """Return half the sum of `|p - p'|`, where p and p' are softmax over the scores' last axis."""
    both = [np.asarray(x, np.float64) for x in (scores, other_scores)]
    weights = [np.exp(x - x.max(axis=-1, keepdims=True)) for x in both]
    p, other = (x / x.sum(axis=-1, keepdims=True) for x in weights)
    return np.asarray(0.5 * np.abs(p - other).sum(axis=-1))
