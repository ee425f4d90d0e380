"""Sandwich: products of sinusoidal position embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, masks
from ntk_alibi._arrays import Array
from ntk_alibi._backends import backend_of
from ntk_alibi.biases.distance import DistanceBias
from ntk_alibi.biases.parameters import parameter, per_head


@dataclass(frozen=True, eq=False)
class Sandwich(DistanceBias):
    """Products of sinusoidal position embeddings, which fall with distance and oscillate.

    Formula::

        bias = lambda_h (p_i.p_j - D/2) = lambda_h sum_k (cos(d w_k) - 1)
        p_i = [sin(i w_k), cos(i w_k)],  w_k = 10000^(-2k/D),  k = 0 .. D/2 - 1

    The constant D/2, which softmax ignores, makes the bias 0 at d = 0. The published strengths are
    lambda_h = H / (8h), h = 1 .. H; they are not learned.

    Args:
        num_heads: H >= 1.
        dimension: D, the even dimension of the embeddings.
        lambdas: the strengths, (heads,) array or tensor, > 0; tensors may require grad. None for
            the published strengths.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or has another number of heads.

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
        lambdas = per_head("lambdas", lambdas, heads, above=0.0)
        self.define(num_heads=heads, sides="symmetric", dimension=dimension, lambdas=lambdas)

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
        """Append position embeddings to queries and keys, as extra channels instead of the bias.

        Formula::

            [q_i, (lambda / scale) p_i].[k_j, p_j] = q_i.k_j + (lambda / scale) p_i.p_j

        The paper's symmetric form [q, sqrt(lambda) p_i].[k, sqrt(lambda) p_j] has the same product;
        with lambda in the queries only, heads can share keys. The product times scale is the score
        with this bias plus the constant lambda_h D/2, which changes the logsumexp but not the
        softmax. Unlike the table, it rounds sums of D products in float32.

        Args:
            query: (batch, heads, queries, head_dim), array or tensor.
            key: (batch, key heads, keys, head_dim).
            scale: the factor of q.k, 1 / sqrt(head_dim) by default; not 0.
            query_positions: (queries,) or (batch, queries) integers; the last columns by default.
            key_positions: (keys,) or (batch, keys) integers; the columns by default.

        Returns:
            query and key with head_dim + D channels, in their framework and dtype, and the scale to
            pass to `attention`.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: an argument has the wrong shape, or scale is 0.

        Example:
            >>> import numpy as np, ntk_alibi as na
            >>> query, key = np.ones((2, 1, 2, 5, 16), np.float32)
            >>> query, key, scale = na.Sandwich(2, dimension=8).concatenated(query, key)
            >>> query.shape, scale
            ((1, 2, 5, 24), 0.25)
        """
        _checks.attention_inputs(query, key, key)
        _checks.floating_dtype(query.dtype, _arrays.ANY_DTYPES)
        _checks.check_shapes(query.shape, key.shape, key.shape)
        if query.shape[1] != self.num_heads:
            raise ValueError(
                f"query must have the bias's {self.num_heads} heads, got {query.shape[1]}"
            )
        factor = _checks.scale(scale, query.shape[3])
        if factor == 0.0:
            raise ValueError(f"scale must not be 0, got {_checks.briefly(scale)}")
        (batch, _, queries, _), keys = query.shape, key.shape[2]
        q = masks.checked_positions("query_positions", query_positions, batch, queries)
        k = masks.checked_positions("key_positions", key_positions, batch, keys)
        lambdas = parameter(self.lambdas, query, widest=True)[:, None, None] / factor
        embedded = self._embed(q, keys - queries, queries), self._embed(k, 0, keys)
        rows, columns = (parameter(x, query, widest=True)[:, None] for x in embedded)
        return _with_channels(query, lambdas * rows), _with_channels(key, columns), factor

    def _embed(
        self, positions: NDArray[np.int32] | None, first: int, length: int
    ) -> NDArray[np.float64]:
        """Return sines and cosines of positions (1 or batch, length) along a new last axis."""
        if positions is None:
            positions = np.arange(first, first + length, dtype=np.int32)[None]
        angles = positions[..., None] * np.array(self._frequencies())
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def _with_channels(array: Any, channels: Any) -> Array:
    """Append channels, which broadcast, to an array (batch, heads, length, dim)."""
    backend = backend_of(array)
    xp = backend.xp
    shape = (*array.shape[:3], channels.shape[3])
    added = xp.broadcast_to(channels, shape)
    joined: Array = xp.concatenate([array, backend.cast(added, array.dtype)], -1)
    return joined
