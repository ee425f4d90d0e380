"""Sandwich: products of sinusoidal position embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, masks
from ntk_alibi._arrays import Array
from ntk_alibi.biases import checks
from ntk_alibi.biases.distance import DistanceBias
from ntk_alibi.biases.kernel_bias import parameter


@dataclass(frozen=True, eq=False)
class Sandwich(DistanceBias):
    """Products of sinusoidal position embeddings, which fall with distance in waves.

    bias = lambda_h (p_i.p_j - D/2) = lambda_h sum_k (cos(d w_k) - 1),  w_k = 10000^(-2k/D),
    k = 0 .. D/2 - 1

    with p_i = [sin(i w_k), cos(i w_k)]. The constant, which no softmax sees, makes it 0 at d = 0.
    The published strengths are lambda_h = H / (8h), h = 1 .. H; nothing is learned.

    Args:
        num_heads: H >= 1.
        dimension: D of the embeddings, even.
        lambdas: (heads,) numbers > 0, or a tensor, which may require grad; the published ones if
            None.

    Raises:
        TypeError, ValueError: an argument is wrong, out of range, or of another number of heads.

    Example:
        >>> import ntk_alibi as na
        >>> na.Sandwich(1, dimension=2).tensor(1, 3)[0, 0]  # (cos(d) - 1) / 8
        array([[-0.17701836, -0.05746221,  0.        ]], dtype=float32)

    Source: Chi et al. 2022 (arXiv 2212.10356).
    """

    num_heads: int
    dimension: int = 128
    lambdas: Any = None

    def __post_init__(self) -> None:
        heads = _checks.num_heads(self.num_heads)
        dimension = _checks.integer("dimension", self.dimension, minimum=2)
        _checks.multiple("dimension", dimension, "the pairs of sine and cosine", 2)
        lambdas = self.lambdas
        if lambdas is None:
            lambdas = heads / (8.0 * np.arange(1, heads + 1))
        lambdas = checks.per_head("lambdas", lambdas, heads, above=0.0)
        self._set(num_heads=heads, sides="symmetric", dimension=dimension, lambdas=lambdas)

    def _frequencies(self) -> list[float]:
        return [10000.0 ** (-2.0 * k / self.dimension) for k in range(self.dimension // 2)]

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        (lambdas,) = parameters
        return lambdas * sum(xp.cos(distance * w) - 1.0 for w in self._frequencies())

    def concatenated(
        self,
        query: Array,
        key: Array,
        *,
        scale: float | None = None,
        query_positions: Array | None = None,
        key_positions: Array | None = None,
    ) -> tuple[Array, Array, float]:
        """Return queries and keys with positions as further channels, which need no bias.

        [q_i, (lambda / scale) p_i].[k_j, p_j] = q_i.k_j + (lambda / scale) p_i.p_j

        This is the other form of the same method, [q, sqrt(lambda) p_i].[k, sqrt(lambda) p_j]; with
        lambda at the queries, heads may share keys. Times scale it is the scores with this bias,
        plus the constant lambda_h D/2, which no softmax but the logsumexp sees. In float32 it
        rounds sums of D products; the table does not.

        Args:
            query: (batch, heads, queries, head_dim), array or tensor.
            key: (batch, key heads, keys, head_dim).
            scale: of the dot products, 1 / sqrt(head_dim) by default; not 0.
            query_positions: (queries,) or (batch, queries) integers; the last columns by default.
            key_positions: (keys,) or (batch, keys) integers; the columns by default.

        Returns:
            query and key of head_dim + D channels, as they came, and the scale to attend with.

        Raises:
            TypeError, ValueError: an argument is wrong.
        """
        _checks.attention_inputs(query, key, key)
        _checks.floating_dtype(query.dtype, _arrays.ANY_DTYPES)
        _checks.fitting_shapes(query.shape, key.shape, key.shape)
        checks.heads_of("query", query.shape[1], self.num_heads)
        number = checks.nonzero_scale(scale, query.shape[3])
        (batch, _, queries, _), keys = query.shape, key.shape[2]
        q = masks.checked_positions("query_positions", query_positions, batch, queries)
        k = masks.checked_positions("key_positions", key_positions, batch, keys)
        lambdas = parameter(self.lambdas, query, widest=True)[:, None, None] / number
        embedded = self._embedded(q, keys - queries, queries), self._embedded(k, 0, keys)
        rows, columns = (parameter(x, query, widest=True)[:, None] for x in embedded)
        rows = lambdas * rows
        return (
            _arrays.with_channels(query, rows),
            _arrays.with_channels(key, columns),
            number,
        )

    def _embedded(
        self, positions: NDArray[np.int32] | None, first: int, length: int
    ) -> NDArray[np.float64]:
        """Return sines and cosines of positions (1 or batch, length) along a new last axis."""
        given = np.arange(first, first + length)[None] if positions is None else positions
        angles = given[..., None] * np.array(self._frequencies())
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
