"""Biases of all pairs, and their derivatives in the parameters.

d is the distance i - j, (1 or batch, 1, Q, K); parameters are (heads, 1, 1). `bias_cases` has the
biases with parameters per head.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Partials = dict[str, Floats]


def linear(d: Floats, left: Floats, right: Floats) -> tuple[Floats, Partials]:
    """Return -left |d| behind and -right |d| ahead; slopes (..., heads, 1 or Q, 1), inf hides."""
    r = np.abs(d)

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
