"""Slopes of ALiBi and its scalings."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]


def alibi_slopes(num_heads: int) -> Floats:
    """Return ALiBi's slopes (heads,): Press et al. 2022, section 3, and the authors' get_slopes.

    For n heads, n a power of two, the slopes are the geometric sequence with first term and ratio
    2^(-8/n). Other head counts take the slopes for the next lower power of two, then every other
    slope for the next higher one.
    """
    if math.log2(num_heads).is_integer():
        return np.array([2.0 ** (-8.0 * h / num_heads) for h in range(1, num_heads + 1)])
    lower = 2 ** math.floor(math.log2(num_heads))
    interleaved = alibi_slopes(2 * lower)[0::2]
    return np.concatenate([alibi_slopes(lower), interleaved[: num_heads - lower]])


def geometric_slopes(num_heads: int) -> Floats:
    """Return m_h = 1 / 2^(8h/H) for any head count, as in keezen/ntk_alibi and many tutorials."""
    return np.array([1.0 / 2.0 ** (8.0 * h / num_heads) for h in range(1, num_heads + 1)])


def interpolated_slopes(slopes: ArrayLike, factor: float) -> Floats:
    """Return the slopes of position interpolation, m_h / a."""
    return np.asarray(slopes, np.float64) / factor


def ntk_slopes(slopes: ArrayLike, factor: float) -> Floats:
    """Return the slopes of NTK-ALiBi, m_h / a^t_h, for any slopes m_h = 2^-e_h and factor a.

    The weights are t_h = (e_h - e_min)/(e_max - e_min), or 1 if all slopes are equal.
    """
    slopes = np.asarray(slopes, np.float64)
    exponents = [-math.log2(slope) for slope in slopes]
    spread = max(exponents) - min(exponents)
    weights = [(e - min(exponents)) / spread if spread else 1.0 for e in exponents]
    return np.array([m / factor**t for m, t in zip(slopes, weights, strict=True)])


def published_ntk_slopes(num_heads: int, factor: float) -> Floats:
    """Return the slopes of NTK-ALiBi as published, 1 / (2^(8h/H) a^((h-1)/(H-1))).

    The formula holds for powers of two from 2 heads on.
    """
    return np.array(
        [
            1.0 / (2.0 ** (8.0 * h / num_heads) * factor ** ((h - 1) / (num_heads - 1)))
            for h in range(1, num_heads + 1)
        ]
    )


def flat_heads_slopes(slopes: ArrayLike, factor: float, share: float) -> Floats:
    """Return the slopes with the ceil(share H) smallest, at least one, divided by the factor."""
    slopes = np.asarray(slopes, np.float64)
    count = max(1, math.ceil(Fraction(str(share)) * len(slopes)))
    flattest = sorted(range(len(slopes)), key=lambda h: slopes[h])[:count]
    return np.array([m / factor if h in flattest else m for h, m in enumerate(slopes)])


def max_bias_slopes(slopes: ArrayLike, factor: float) -> Floats:
    """Return m_h^((e_max + log2 a) / e_max), where 2^-e_max is the smallest slope."""
    slopes = np.asarray(slopes, np.float64)
    highest = -math.log2(slopes.min())
    power = (highest + math.log2(factor)) / highest
    return np.array([m**power for m in slopes])


def dynamic_factor(rate: float, length: int, train_length: int) -> float:
    """Return the factor of a dynamic scaling for n tokens, a = max(rate n / train_length, 1)."""
    return max(rate * length / train_length, 1.0)


def receptive_field(slopes: ArrayLike, share: float) -> Floats:
    """Return the distances d (heads,) at which exp(-m_h d) = share."""
    return math.log(1.0 / share) / np.asarray(slopes, np.float64)
