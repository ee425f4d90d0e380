"""Rotary embeddings and log-n scaling."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]


def rope(x: ArrayLike, positions: ArrayLike, base: float = 10000.0) -> Floats:
    """Return the rotated vectors R_p x, (..., length, D), at positions p: Su et al. 2021, eq. 15.

    Channels 2m and 2m + 1 form a complex number, which is multiplied by e^(i p theta_m) with
    theta_m = base^(-2m/D).
    """
    x = np.asarray(x, np.float64)
    theta = np.array([base ** (-2.0 * m / x.shape[-1]) for m in range(x.shape[-1] // 2)])
    rotated = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(
        1j * np.outer(np.asarray(positions), theta)
    )
    result = np.empty_like(x)
    result[..., 0::2], result[..., 1::2] = rotated.real, rotated.imag
    return result


def rope_ntk_base(base: float, factor: float, dim: int) -> float:
    """Return `base s^(|D| / (|D| - 2))`, NTK-aware interpolation: Peng et al. 2023, section 3.1."""
    return float(base * factor ** (dim / (dim - 2)))


def xpos_scores(
    query: ArrayLike,
    key: ArrayLike,
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    base: float = 10000.0,
    scale_base: float = 512.0,
    gamma: float = 0.4,
) -> Floats:
    """Return XPOS's q.k for all pairs, (..., Q, K), 0 for keys ahead: Sun et al. 2022, section 2.

    Formula::

        sum_m Re[q_m conj(k_m) (zeta_m^(1/B) e^(i theta_m))^(i - j)], zeta_m = (2m/D + gamma)/(1 +
        gamma)
    """
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    d = np.subtract.outer(np.asarray(query_positions, np.float64), np.asarray(key_positions))
    dim = query.shape[-1]
    scores = np.zeros((*query.shape[:-1], key.shape[-2]))
    for m in range(dim // 2):
        theta, zeta = base ** (-2.0 * m / dim), (2.0 * m / dim + gamma) / (1.0 + gamma)
        q = query[..., :, None, 2 * m] + 1j * query[..., :, None, 2 * m + 1]
        k = key[..., None, :, 2 * m] + 1j * key[..., None, :, 2 * m + 1]
        power = zeta ** (np.maximum(d, 0.0) / scale_base) * np.exp(1j * theta * d)
        scores += (q * k.conj() * power).real
    scores[..., d < 0] = 0.0
    return scores


def log_n_factors(visible: ArrayLike, train_length: int, *, strength: float = 1.0) -> Floats:
    """Return max(1, 1 + b log(n / L) / log L) for each query, (..., Q), which sees n keys.

    `visible` has shape (..., Q, K), b is the strength and L the training length. With b = 1 the
    factor is max(1, log n / log L). A query without visible keys has factor 1.
    """
    counts = np.asarray(visible).sum(axis=-1)
    log = math.log(train_length)
    factors: Floats = np.array(
        [max(1.0, 1.0 + strength * (math.log(n) - log) / log) if n else 1.0 for n in counts.flat]
    ).reshape(counts.shape)
    return factors
