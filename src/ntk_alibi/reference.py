"""Reference implementations: each formula as one float64 NumPy function, as its paper writes it.

The package is tested against them. They share no code with the compiled core, favour readability
over speed and materialise all intermediate results, so they suit small inputs only.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]


def alibi_slopes(num_heads: int) -> Floats:
    """Return ALiBi's slopes (heads,): Press et al. 2022, section 3, and the authors' get_slopes.

    For n heads, n a power of two, they are the geometric sequence with first term and ratio
    2^(-8/n). Other head counts take the slopes of the next lower power of two, then every other
    slope of the next higher one.
    """
    if math.log2(num_heads).is_integer():
        return np.array([2.0 ** (-8.0 * h / num_heads) for h in range(1, num_heads + 1)])
    lower = 2 ** math.floor(math.log2(num_heads))
    interleaved = alibi_slopes(2 * lower)[0::2]
    return np.concatenate([alibi_slopes(lower), interleaved[: num_heads - lower]])


def geometric_slopes(num_heads: int) -> Floats:
    """Return m_h = 1 / 2^(8h/H) for every head count, as in keezen/ntk_alibi and many tutorials."""
    return np.array([1.0 / 2.0 ** (8.0 * h / num_heads) for h in range(1, num_heads + 1)])


def interpolated_slopes(slopes: ArrayLike, factor: float) -> Floats:
    """Return the slopes of position interpolation, m_h / a."""
    return np.asarray(slopes, np.float64) / factor


def ntk_slopes(slopes: ArrayLike, factor: float) -> Floats:
    """Return the slopes of NTK-ALiBi for any slopes.

    m_h / a^t_h with t_h = (e_h - e_min)/(e_max - e_min), m_h = 2^-e_h. Equal slopes have t = 1.
    """
    slopes = np.asarray(slopes, np.float64)
    exponents = [-math.log2(slope) for slope in slopes]
    spread = max(exponents) - min(exponents)
    weights = [(e - min(exponents)) / spread if spread else 1.0 for e in exponents]
    return np.array([m / factor**t for m, t in zip(slopes, weights, strict=True)])


def published_ntk_slopes(num_heads: int, factor: float) -> Floats:
    """Return the slopes of NTK-ALiBi as published, 1 / (2^(8h/H) a^((h-1)/(H-1))).

    The formula holds for head counts that are powers of two, at least 2.
    """
    return np.array(
        [
            1.0 / (2.0 ** (8.0 * h / num_heads) * factor ** ((h - 1) / (num_heads - 1)))
            for h in range(1, num_heads + 1)
        ]
    )


def dynamic_factor(rate: float, length: int, train_length: int) -> float:
    """Return the factor of dynamic scalings, A = max(a0 L / L_train, 1)."""
    return max(rate * length / train_length, 1.0)


def key_positions(attention_mask: ArrayLike) -> Floats:
    """Return BLOOM's positions (batch, keys): real tokens count from 0, padding has 0."""
    mask = np.asarray(attention_mask, np.float64)
    return (np.cumsum(mask, axis=1) - 1.0) * mask


def build_alibi_tensor(
    attention_mask: ArrayLike, slopes: ArrayLike, anchor: str = "first"
) -> Floats:
    """Return the key-only bias (batch * heads, 1, keys); slopes (heads,) or (batch, heads)."""
    mask = np.asarray(attention_mask, np.float64)
    batch, keys = mask.shape
    positions = key_positions(mask)
    if anchor == "last":
        positions = (positions - (mask.sum(axis=1, keepdims=True) - 1.0)) * mask
    slopes = np.broadcast_to(np.asarray(slopes, np.float64), (batch, np.shape(slopes)[-1]))
    return (slopes[:, :, None] * positions[:, None, :]).reshape(-1, 1, keys)


def distances(query_length: int, key_length: int) -> Floats:
    """Return D = i - j (queries, keys), with the last query aligned with the last key."""
    queries = np.arange(query_length) + (key_length - query_length)
    return (queries[:, None] - np.arange(key_length)[None, :]).astype(np.float64)


def visible(
    query_positions: ArrayLike, key_positions: ArrayLike, key_padding_mask: Any = None, *,
    causal: bool = True, window: int | None = None, causal_block: int | None = None, sink: int = 0,
) -> NDArray[np.bool_]:  # fmt: skip
    """Return which keys each query sees, (..., Q, K), by one rule for each pair; no floats.

    Of a query at p and a key at k, with d = p - k, the first of these that holds decides:

    1. key_padding_mask (..., K) is 0 for the key: hidden.
    2. causal and d < 0: hidden. Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3.
    3. a window and d <= -window: hidden. This package's, for keys ahead.
    4. k < sink: visible. Xiao et al. 2023, arXiv 2309.17453, section 3.2.
    5. a window and d >= window: hidden. Beltagy et al. 2020, arXiv 2004.05150, section 3.1.
    6. k is before the block that precedes p's block: hidden. Sun et al. 2022, arXiv 2212.10554.
    7. otherwise: visible.
    """

    def sees(p: int, k: int, real: bool) -> bool:
        if not real or (causal and p - k < 0) or (window is not None and p - k <= -window):
            return False
        if k < sink:
            return True
        if window is not None and p - k >= window:
            return False
        return causal_block is None or p // causal_block - k // causal_block <= 1

    queries, keys = np.asarray(query_positions), np.asarray(key_positions)
    real = np.asarray([1] if key_padding_mask is None else key_padding_mask) != 0
    decide = np.vectorize(sees, otypes=[np.bool_])
    return np.array(decide(queries[..., None], keys[..., None, :], real[..., None, :]), np.bool_)


def streaming_distances(
    length: int, window: int | None = None, sink: int = 0, causal_block: int | None = None
) -> Floats:
    """Return distances (length, length) in a cache that holds the sinks and the window or blocks.

    Distances count the cached keys only, as evicted ones have left the cache; they are infinite for
    keys that the query does not see.
    """
    tokens = np.arange(length)
    seen = visible(tokens, tokens, window=window, sink=sink, causal_block=causal_block)
    return np.where(seen, seen.sum(axis=1, keepdims=True) - seen.cumsum(axis=1), np.inf)


def linear_bias(
    left_slopes: ArrayLike, right_slopes: ArrayLike, query_length: int, key_length: int
) -> Floats:
    """Return -m_left d for keys behind the query, -m_right |d| for keys ahead, 0 at d = 0.

    An infinite slope masks its side. Slopes have shape (heads,), (batch, heads) or (batch, heads,
    queries), the result (1 or batch, heads, queries, keys).
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
    """Return -m_h |i - j|, (1, heads, queries, keys)."""
    return -np.asarray(slopes, np.float64)[None, :, None, None] * np.abs(
        distances(query_length, key_length)
    )


def receptive_field(slopes: ArrayLike, share: float) -> Floats:
    """Return the distances d (heads,) at which exp(-m_h d) = share."""
    return math.log(1.0 / share) / np.asarray(slopes, np.float64)


def halves_bias(
    left_slopes: ArrayLike, right_slopes: ArrayLike, query_length: int, key_length: int
) -> Floats:
    """Return -m_h |i - j| of heads that see one side each.

    The first heads, with left slopes, see i >= j; the others, with right slopes, see i <= j.
    """
    d = distances(query_length, key_length)
    left, right = (symmetric_bias(m, query_length, key_length) for m in (left_slopes, right_slopes))
    return np.concatenate([np.where(d >= 0, left, -np.inf), np.where(d <= 0, right, -np.inf)], 1)


def exempt_bias(bias: ArrayLike, exempt: int) -> Floats:
    """Return a bias (..., Q, K) with 0 where query or key is one of the first `exempt` tokens.

    Entries of -inf stay -inf; the last query is at the last key.
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
    """Return -D of LittleBird, (1, heads, Q, K): Lee et al. 2022, arXiv 2210.11870.

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
    """Return -r1 |m - n|^r2, (heads, *distances): Chi et al. 2022, arXiv 2205.09921."""
    return -_heads(r1, distance) * np.abs(distance) ** _heads(r2, distance)


def kerple_log(distance: ArrayLike, r1: ArrayLike, r2: ArrayLike) -> Floats:
    """Return -r1 log(1 + r2 |m - n|), (heads, *distances): Chi et al. 2022, arXiv 2205.09921."""
    return -_heads(r1, distance) * np.log(1.0 + _heads(r2, distance) * np.abs(distance))


def bam(
    distance: ArrayLike, alpha: ArrayLike, beta: ArrayLike, mu: ArrayLike, epsilon: float = 0.0
) -> Floats:
    """Return -(|alpha (d - mu)| + epsilon)^beta, (heads, *distances): Bianchessi et al. 2025."""
    z = _heads(alpha, distance) * (np.asarray(distance, np.float64) - _heads(mu, distance))
    return -((np.abs(z) + epsilon) ** _heads(beta, distance))


def sinusoidal_embeddings(positions: ArrayLike, dimension: int) -> Floats:
    """Return sin and cos of m / 10000^(2i/d), (*positions, dimension): Vaswani et al. 2017."""
    i = np.arange(dimension // 2)
    angles = np.asarray(positions, np.float64)[..., None] / 10000.0 ** (2.0 * i / dimension)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def sandwich(
    query_positions: ArrayLike, key_positions: ArrayLike, num_heads: int, dimension: int = 128
) -> Floats:
    """Return p_m.p_n / (8h/H), (heads, Q, K): Chi et al. 2022, arXiv 2212.10356.

    p are sinusoidal embeddings, 8h/H is the compression ratio of head h.
    """
    products = sinusoidal_embeddings(query_positions, dimension) @ np.swapaxes(
        sinusoidal_embeddings(key_positions, dimension), -1, -2
    )
    ratios = 8.0 * np.arange(1, num_heads + 1) / num_heads
    return products[None] / ratios[:, None, None]


def forget_gates(log_gates: ArrayLike, query_length: int) -> Floats:
    """Return D_ij = sum_(l = j+1)^i log f_l, -inf for j > i: Lin et al. 2025, arXiv 2503.02130.

    log_gates have shape (batch, heads, keys), the result (batch, heads, queries, keys); the last
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


def rope(x: ArrayLike, positions: ArrayLike, base: float = 10000.0) -> Floats:
    """Return R_p x of vectors (..., length, D) at positions (length,): Su et al. 2021, eq. 15.

    Channels 2m and 2m + 1 form a complex number, which is multiplied by e^(i p theta_m), theta_m =
    base^(-2m/D).
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
    """Return base s^(|D| / (|D| - 2)) of NTK-aware interpolation: Peng et al. 2023, section 3.1."""
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
    """Return XPOS's q.k of all pairs (..., Q, K), 0 for keys ahead: Sun et al. 2022, section 2.

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


def log_n_factors(visible: ArrayLike, train_length: int) -> Floats:
    """Return max(1, log n / log L) of each query, which sees n keys in a mask (..., Q, K).

    The factor of a query without visible keys is 1.
    """
    counts = np.asarray(visible).sum(axis=-1)
    factors: Floats = np.array(
        [max(1.0, math.log(n) / math.log(train_length)) if n else 1.0 for n in counts.flat]
    ).reshape(counts.shape)
    return factors


def rounded(number: float, significant_bits: int) -> float:
    """Round a number to significant_bits, ties to even, with an unbounded exponent."""
    if number == 0.0:
        return 0.0
    unit = 2.0 ** (math.floor(math.log2(abs(number))) + 1 - significant_bits)
    return round(number / unit) * unit


def total_variation(scores: ArrayLike, other_scores: ArrayLike) -> Floats:
    """Return half the sum of |p - p'| for two softmaxes over the last axis."""
    both = [np.asarray(x, np.float64) for x in (scores, other_scores)]
    weights = [np.exp(x - x.max(axis=-1, keepdims=True)) for x in both]
    p, other = (x / x.sum(axis=-1, keepdims=True) for x in weights)
    return np.asarray(0.5 * np.abs(p - other).sum(axis=-1))


def attention(
    query: Any, key: Any, value: Any, bias: ArrayLike = 0.0, scale: float | None = None
) -> tuple[Floats, Floats]:
    """Return softmax(scale q.k + bias) v and its logsumexp; scale = 1/sqrt(D) if None.

    query has shape (..., Q, D), key and value (..., K, D); bias broadcasts to (..., Q, K) and is
    -inf where a key is masked. A query without a visible key has output 0 and logsumexp -inf.
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = scale * (query @ np.swapaxes(key, -1, -2)) + np.asarray(bias, np.float64)
    largest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(largest), 0.0, largest))
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        logsumexp = (np.log(total) + np.where(np.isinf(largest), 0.0, largest))[..., 0]
    return (weights / np.where(total == 0.0, 1.0, total)) @ value, logsumexp


def attention_gradients(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike,
    output_gradient: ArrayLike,
    logsumexp_gradient: ArrayLike | None = None,
    scale: float | None = None,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the gradients of `attention` in query, key, value and the bias of all pairs.

    p are the softmax weights, o = p v, do is the gradient of o and dl that of the logsumexp:

    ds_ij = p_ij (do_i.v_j - do_i.o_i + dl_i);  dq = scale ds k;  dk = scale ds^T q;  dv = p^T do

    The gradient of the bias is ds, of shape (batch, heads, queries, keys).
    """
    q, k, v, do = (np.asarray(x, np.float64) for x in (query, key, value, output_gradient))
    output, logsumexp = attention(q, k, v, bias, scale)
    scale = 1.0 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * q @ k.swapaxes(-1, -2) + np.asarray(bias, np.float64)
    empty = np.isneginf(logsumexp)
    weights = np.exp(scores - np.where(empty, 0.0, logsumexp)[..., None])
    correction = (do * output).sum(axis=-1)
    if logsumexp_gradient is not None:
        correction = correction - np.where(empty, 0.0, np.asarray(logsumexp_gradient, np.float64))
    ds = weights * (do @ v.swapaxes(-1, -2) - correction[..., None])
    return scale * ds @ k, scale * ds.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ do, ds
