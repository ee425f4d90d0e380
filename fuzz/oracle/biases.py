"""Biases of all pairs, and their derivatives in the parameters.

d is the distance i - j, (1 or batch, 1, Q, K); parameters are (heads, 1, 1). A function returns the
bias and, by name, its partial derivatives.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Partials = dict[str, Floats]


def linear(
    d: Floats, left: Floats, right: Floats, knee: tuple[float, float] = (np.inf, 1.0)
) -> tuple[Floats, Partials]:
    """Return -left r behind and -right r ahead; slopes (..., heads, 1 or Q, 1), inf hides.

    r is the distance, of which what is beyond a knee's start is divided by its factor.
    """
    start, factor = knee
    r = np.minimum(np.abs(d), start) + np.maximum(np.abs(d) - start, 0.0) / factor

    def side(slopes: Floats) -> Floats:
        return np.where(np.isinf(slopes), -slopes, -np.where(np.isinf(slopes), 0.0, slopes) * r)

    bias = np.where(d > 0, side(left), np.where(d < 0, side(right), 0.0))
    return bias, {"left": np.where(d > 0, -r, 0.0), "right": np.where(d < 0, -r, 0.0)}


def with_exempt(
    bias: Floats, partials: Partials, is_exempt: NDArray[np.bool_], constant: Floats | float
) -> tuple[Floats, Partials]:
    """Put a constant at exempt pairs that are not hidden."""
    partials = {name: np.where(is_exempt, 0.0, x) for name, x in partials.items()}
    return np.where(is_exempt & ~np.isinf(bias), constant, bias), partials


def kerple_power(d: Floats, r1: Floats, r2: Floats) -> tuple[Floats, Partials]:
    """Return -r1 |d|^r2."""
    reach = np.abs(d)
    power = reach**r2
    log = np.log(np.where(reach == 0.0, 1.0, reach))
    return -r1 * power, {"r1": -power, "r2": -r1 * power * log}


def kerple_log(d: Floats, r1: Floats, r2: Floats) -> tuple[Floats, Partials]:
    """Return -r1 log(1 + r2 |d|)."""
    reach = np.abs(d)
    log = np.log1p(r2 * reach)
    return -r1 * log, {"r1": -log, "r2": -r1 * reach / (1.0 + r2 * reach)}


def bam(
    d: Floats, alpha: Floats, beta: Floats, mu: Floats, epsilon: float
) -> tuple[Floats, Partials]:
    """Return -(alpha |d - mu| + epsilon)^beta."""
    offset = d - mu
    base = alpha * np.abs(offset) + epsilon
    power = base**beta
    positive = np.where(base == 0.0, 1.0, base)
    slope = np.where(base == 0.0, 0.0, beta * positive ** (beta - 1.0))
    return -power, {
        "alpha": -slope * np.abs(offset),
        "beta": -power * np.log(positive),
        "mu": slope * alpha * np.sign(offset),
    }


def sandwich(d: Floats, lambdas: Floats, dimension: int) -> tuple[Floats, Partials]:
    """Return lambda sum_k (cos(d w_k) - 1), w_k = 10000^(-2k/D)."""
    waves = sum(np.cos(d * 10000.0 ** (-2.0 * k / dimension)) - 1.0 for k in range(dimension // 2))
    partial = np.asarray(waves, np.float64)
    return lambdas * partial, {"lambdas": partial}


def t5_buckets(
    d: NDArray[np.int64], buckets: int, max_distance: int, *, bidirectional: bool
) -> NDArray[np.int64]:
    """Return T5's bucket of each distance, rounded in float32 as transformers does."""
    side = buckets // 2 if bidirectional else buckets
    reach = np.abs(d) if bidirectional else np.maximum(d, 0)
    exact = side // 2
    ratio = (np.maximum(reach, exact) / np.float32(exact)).astype(np.float32)
    steps = np.log(ratio) / np.float32(np.log(max_distance / exact)) * np.float32(side - exact)
    coarse = np.minimum(exact + steps.astype(np.int64), side - 1)
    bucket = np.where(reach < exact, reach, coarse)
    return bucket + side * (d < 0) if bidirectional else bucket


def forget_gates(log_gates: Floats, queries: int) -> Floats:
    """Return sum of log gates l with j < l <= i by column, (batch, heads, Q, K)."""
    sums = np.cumsum(log_gates, axis=-1)
    rows = sums[..., sums.shape[-1] - queries :]
    return rows[..., :, None] - sums[..., None, :]
