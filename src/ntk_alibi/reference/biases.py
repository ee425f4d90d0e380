"""Biases for all pairs of queries and keys."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ntk_alibi.reference.masks import distances, key_positions

Floats: TypeAlias = NDArray[np.float64]


def build_alibi_tensor(
    attention_mask: ArrayLike, slopes: ArrayLike, anchor: str = "first"
) -> Floats:
    """Return BLOOM's bias (batch * heads, 1, keys) by key; slopes (heads,) or (batch, heads)."""
    mask = np.asarray(attention_mask, np.float64)
    batch, keys = mask.shape
    positions = key_positions(mask)
    if anchor == "last":
        positions = (positions - (mask.sum(axis=1, keepdims=True) - 1.0)) * mask
    slopes = np.broadcast_to(np.asarray(slopes, np.float64), (batch, np.shape(slopes)[-1]))
    return (slopes[:, :, None] * positions[:, None, :]).reshape(-1, 1, keys)


def linear_bias(
    left_slopes: ArrayLike, right_slopes: ArrayLike, query_length: int, key_length: int
) -> Floats:
    """Return `-m_left d` for keys behind the query, `-m_right |d|` for keys ahead, 0 at d = 0.

    An infinite slope masks its side. Slopes have shape (heads,), (batch, heads) or (batch, heads,
    queries); the result has shape (1 or batch, heads, queries, keys).
    """
    d = distances(query_length, key_length)

    def side(slopes: ArrayLike, reach: Floats) -> Floats:
        slopes = np.asarray(slopes, np.float64)
        slopes = slopes[None] if slopes.ndim == 1 else slopes
        slopes = slopes[..., None] if slopes.ndim == 2 else slopes
        finite = np.where(np.isinf(slopes), 0.0, slopes)[..., None]
        penalty = -finite * reach
        return np.where(np.isinf(slopes)[..., None] & (reach > 0), -np.inf, penalty)

    return side(left_slopes, np.maximum(d, 0.0)) + side(right_slopes, np.maximum(-d, 0.0))


def symmetric_bias(slopes: ArrayLike, query_length: int, key_length: int) -> Floats:
    """Return `-m_h |i - j|`, (1, heads, queries, keys)."""
    return -np.asarray(slopes, np.float64)[None, :, None, None] * np.abs(
        distances(query_length, key_length)
    )


def halves_bias(
    left_slopes: ArrayLike, right_slopes: ArrayLike, query_length: int, key_length: int
) -> Floats:
    """Return `-m_h |i - j|` for heads that see one side each, -inf on the other side.

    The first heads, with left slopes, see i >= j; the others, with right slopes, see i <= j.
    """
    d = distances(query_length, key_length)
    left, right = (symmetric_bias(m, query_length, key_length) for m in (left_slopes, right_slopes))
    return np.concatenate([np.where(d >= 0, left, -np.inf), np.where(d <= 0, right, -np.inf)], 1)


def exempt_bias(bias: ArrayLike, exempt: int) -> Floats:
    """Return a bias (..., Q, K) with 0 where query or key is one of the first `exempt` tokens.

    Entries of -inf stay. The last query is at the last key.
    """
    bias = np.array(bias, np.float64)
    queries, keys = bias.shape[-2:]
    for i in range(queries):
        for j in range(keys):
            if min(i + keys - queries, j) < exempt:
                bias[..., i, j] = np.where(np.isinf(bias[..., i, j]), -np.inf, 0.0)
    return bias


def bialibi_bias(
    alpha: ArrayLike, beta: ArrayLike, gamma: ArrayLike, query_length: int, key_length: int
) -> Floats:
    """Return LittleBird's bias -D, (1, heads, Q, K): Lee et al. 2022, arXiv 2210.11870.

    D_ij = 0 for i = j, alpha for i = 0 or j = 0, beta (i - j) for i > j, gamma (j - i) for i < j.
    """
    d = distances(query_length, key_length)
    alpha, beta, gamma = (np.asarray(x, np.float64)[:, None, None] for x in (alpha, beta, gamma))
    j = np.arange(key_length)
    i = d + j
    cost = np.where(d > 0, beta * d, -gamma * d)
    cost = np.where((i <= 0) | (j == 0), alpha, cost)
    return -np.where(d == 0, 0.0, cost)[None]


def _heads(parameters: ArrayLike, distance: ArrayLike) -> Floats:
    """Return parameters (heads,) with trailing axes that broadcast against distance."""
    return np.asarray(parameters, np.float64).reshape(-1, *[1] * np.ndim(distance))


def kerple_power(distance: ArrayLike, r1: ArrayLike, r2: ArrayLike) -> Floats:
    """Return `-r1 |m - n|^r2`, (heads, ...): Chi et al. 2022, arXiv 2205.09921."""
    return -_heads(r1, distance) * np.abs(distance) ** _heads(r2, distance)


def kerple_log(distance: ArrayLike, r1: ArrayLike, r2: ArrayLike) -> Floats:
    """Return `-r1 log(1 + r2 |m - n|)`, (heads, ...): Chi et al. 2022, arXiv 2205.09921."""
    return -_heads(r1, distance) * np.log(1.0 + _heads(r2, distance) * np.abs(distance))


def bam(
    distance: ArrayLike, alpha: ArrayLike, beta: ArrayLike, mu: ArrayLike, epsilon: float = 0.0
) -> Floats:
    """Return `-(|alpha (d - mu)| + epsilon)^beta`, (heads, ...): Bianchessi et al. 2025."""
    z = _heads(alpha, distance) * (np.asarray(distance, np.float64) - _heads(mu, distance))
    return -((np.abs(z) + epsilon) ** _heads(beta, distance))


def sinusoidal_embeddings(positions: ArrayLike, dimension: int) -> Floats:
    """Return sin and cos of m / 10000^(2i/d), (..., dimension): Vaswani et al. 2017."""
    i = np.arange(dimension // 2)
    angles = np.asarray(positions, np.float64)[..., None] / 10000.0 ** (2.0 * i / dimension)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def sandwich(
    query_positions: ArrayLike, key_positions: ArrayLike, num_heads: int, dimension: int = 128
) -> Floats:
    """Return p_m.p_n / (8h/H), (heads, Q, K): Chi et al. 2022, arXiv 2212.10356.

    p_m is the sinusoidal embedding of position m, 8h/H the compression ratio of head h.
    """
    products = sinusoidal_embeddings(query_positions, dimension) @ np.swapaxes(
        sinusoidal_embeddings(key_positions, dimension), -1, -2
    )
    ratios = 8.0 * np.arange(1, num_heads + 1) / num_heads
    return products[None] / ratios[:, None, None]


def forget_gates(log_gates: ArrayLike, query_length: int) -> Floats:
    """Return D_ij = sum_(l = j+1)^i log f_l, -inf for j > i: Lin et al. 2025, arXiv 2503.02130.

    log_gates has shape (batch, heads, keys), the result (batch, heads, queries, keys). The last
    query is at the last key.
    """
    gates = np.asarray(log_gates, np.float64)
    keys = gates.shape[-1]
    bias = np.full((*gates.shape[:2], query_length, keys), -np.inf)
    for row in range(query_length):
        i = keys - query_length + row
        for j in range(i + 1):
            bias[:, :, row, j] = gates[:, :, j + 1 : i + 1].sum(axis=-1)
    return bias
