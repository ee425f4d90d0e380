"""Biases that are a function of the distance alone, as tables over it.

Each has its formula once, for arrays and tensors alike, in float64 over exact distances; tables are
rounded to float32 at the end. Whatever the formula, the kernels read the table.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _validation
from ntk_alibi._arrays import Array
from ntk_alibi.kernel_bias import BiasObject, KernelBias, Problem

#: A constant table of no more numbers is kept.
KEPT = 2**20


@dataclass(frozen=True, eq=False)
class DistanceBias(BiasObject):
    """A bias over the distance d = i - j of query and key; subclasses say which."""

    #: Whether its tables may be kept, and reach over any distance.
    _kept: ClassVar[bool] = True

    def over(self, first: int, last: int, like: Any = None) -> Any:
        """The bias at the distances first, first + 1, ... last, (heads, distances).

        float64, as a tensor if `like` is one: then differentiable in the parameters and on like's
        device.
        """
        distances = _arrays.float64_range(first, last, like)
        parameters = (
            _arrays.float64(x if _arrays.is_tensor(like) else _constant(x), like)
            for x in self.parameters
        )
        columns = (x[:, None] if x.ndim == 1 else x for x in parameters)
        return self._formula(_arrays.namespace(like), distances, *columns)

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        """Values (heads, distances), by functions that NumPy and torch share.

        Parameters are float64, those for each head (heads, 1).
        """
        raise NotImplementedError

    def _numbers(self, first: int, last: int) -> NDArray[np.float32]:
        """The table of NumPy numbers, kept where it is small and its parameters are its own.

        Kept ones reach further, to the next power of two: keys that are appended one by one need a
        table that is longer by one each time.
        """
        begin, end = -_power(-first), _power(last)
        small = (end - begin + 1) * self.num_heads <= KEPT
        if small and self._kept and not any(map(_arrays.is_tensor, self.parameters)):
            return _kept_table(self, begin, end)[:, first - begin : last - begin + 1]
        return np.asarray(_arrays.to_numpy(self.over(first, last)), np.float32)

    def kernel_bias(self, problem: Problem) -> KernelBias:
        """Its table over the distances of a problem."""
        first, last = problem.distances()
        _validation.span((first, last))
        return KernelBias(table=self._numbers(first, last), table_begin=first)

    def _all_pairs(self, queries: int, keys: int) -> NDArray[np.float32]:
        """(1, heads, queries, keys)."""
        if queries == 0 or keys == 0:
            return np.zeros((1, self.num_heads, queries, keys), np.float32)
        hidden = queries - 1 if self.sides == "causal" else 0
        table = self._numbers(1 - queries + hidden, keys - 1)
        table = np.pad(table, ((0, 0), (hidden, 0)), constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(table[:, ::-1], keys, axis=1)
        return windows[None, :, ::-1]


def _constant(parameter: Any) -> NDArray[Any]:
    return _validation.constant("a parameter of the bias", parameter)


def _power(number: int) -> int:
    """The next power of two, 0 for what is not positive."""
    return 1 << (number - 1).bit_length() if number > 0 else 0


@functools.lru_cache(maxsize=16)
def _kept_table(bias: DistanceBias, first: int, last: int) -> NDArray[np.float32]:
    table: NDArray[np.float32] = bias.over(first, last).astype(np.float32)
    table.flags.writeable = False
    return table


@dataclass(frozen=True, eq=False)
class KerplePower(DistanceBias):
    """KERPLE's power kernel: scores fall with a power of the distance.

    bias = -r1 |d|^r2,  r1 > 0, 0 < r2 <= 2

    r2 = 1 is ALiBi with slope r1.

    Args:
        r1: (heads,) numbers > 0, or a tensor, which may require grad.
        r2: (heads,) numbers in (0, 2], or one for all heads.

    Raises:
        TypeError, ValueError: an argument is wrong, out of range, or of another number of heads.

    Example:
        >>> import ntk_alibi as na
        >>> na.KerplePower(r1=[0.5], r2=[2.0]).tensor(1, 4)[0, 0]
        array([[-4.5, -2. , -0.5, -0. ]], dtype=float32)

    Source: Chi et al. 2022 (arXiv 2205.09921).
    """

    r1: Any
    r2: Any

    def __post_init__(self) -> None:
        r1 = _validation.per_head("r1", self.r1, above=0.0)
        heads = int(r1.shape[0])
        r2 = _validation.per_head("r2", self.r2, heads, above=0.0, at_most=2.0)
        self._set(num_heads=heads, sides="symmetric", r1=r1, r2=r2)

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        r1, r2 = parameters
        return -r1 * xp.abs(distance) ** r2


@dataclass(frozen=True, eq=False)
class KerpleLog(DistanceBias):
    """KERPLE's logarithmic kernel: weights fall with a power of the distance.

    bias = -r1 log(1 + r2 |d|),  r1 > 0, r2 > 0

    Args:
        r1: (heads,) numbers > 0, or a tensor, which may require grad.
        r2: (heads,) numbers > 0, or one for all heads.

    Raises:
        TypeError, ValueError: an argument is wrong, out of range, or of another number of heads.

    Example:
        >>> import ntk_alibi as na
        >>> na.KerpleLog(r1=[1.0], r2=[1.0]).tensor(1, 3)[0, 0]
        array([[-1.0986123, -0.6931472, -0.       ]], dtype=float32)

    Source: Chi et al. 2022 (arXiv 2205.09921).
    """

    r1: Any
    r2: Any

    def __post_init__(self) -> None:
        r1 = _validation.per_head("r1", self.r1, above=0.0)
        heads = int(r1.shape[0])
        r2 = _validation.per_head("r2", self.r2, heads, above=0.0)
        self._set(num_heads=heads, sides="symmetric", r1=r1, r2=r2)

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        r1, r2 = parameters
        return -r1 * xp.log1p(r2 * xp.abs(distance))


@dataclass(frozen=True, eq=False)
class BAM(DistanceBias):
    """A generalised Gaussian over the distance, as the Bayesian attention mechanism has it.

    bias = -(alpha |d - mu| + epsilon)^beta,  alpha > 0

    beta = 1 is ALiBi with slope alpha, beta = 2 a Gaussian; with 0 < beta < 1 far keys weigh more,
    with beta < 0 near ones least. A head with mu > 0 looks first mu tokens back. Where d = mu the
    derivative of |d - mu|^beta in mu is infinite for beta < 1, and the value itself for beta < 0:
    epsilon, 1e-5 as of the authors' code, prevents that.

    Args:
        alpha: (heads,) numbers > 0, or a tensor, which may require grad.
        beta: (heads,) numbers, or one for all heads; > 0 if epsilon is 0.
        mu: likewise, any.
        epsilon: a number >= 0.

    Raises:
        TypeError, ValueError: an argument is wrong, out of range, or of another number of heads.

    Example:
        >>> import ntk_alibi as na
        >>> na.BAM(alpha=[0.5], beta=[2.0], mu=[1.0], epsilon=0.0).tensor(1, 4)[0, 0]
        array([[-1.  , -0.25, -0.  , -0.25]], dtype=float32)

    Source: Bianchessi et al. 2025 (arXiv 2505.22842).
    """

    alpha: Any
    beta: Any
    mu: Any = 0.0
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        alpha = _validation.per_head("alpha", self.alpha, above=0.0)
        heads = int(alpha.shape[0])
        epsilon = _validation.finite("epsilon", self.epsilon, minimum=0.0)
        least = -math.inf if epsilon else 0.0
        beta = _validation.per_head("beta", self.beta, heads, above=least)
        mu = _validation.per_head("mu", self.mu, heads)
        self._set(
            num_heads=heads, sides="symmetric", alpha=alpha, beta=beta, mu=mu, epsilon=epsilon
        )

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        alpha, beta, mu = parameters
        return -((alpha * xp.abs(distance - mu) + self.epsilon) ** beta)


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
        heads = _validation.num_heads(self.num_heads)
        dimension = _validation.integer("dimension", self.dimension, minimum=2)
        _validation.multiple("dimension", dimension, "the pairs of sine and cosine", 2)
        lambdas = self.lambdas
        if lambdas is None:
            lambdas = heads / (8.0 * np.arange(1, heads + 1))
        lambdas = _validation.per_head("lambdas", lambdas, heads, above=0.0)
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
        """Queries and keys with positions as further channels, which need no bias any more.

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
        _validation.attention_shapes(query, key, key, differentiable=True)
        _validation.heads_of("query", query.shape[1], self.num_heads)
        number = _validation.nonzero_scale(scale, query.shape[3])
        (batch, _, queries, _), keys = query.shape, key.shape[2]
        q = _validation.positions("query_positions", query_positions, batch, queries)
        k = _validation.positions("key_positions", key_positions, batch, keys)
        lambdas = self.lambdas if _arrays.is_tensor(query) else _constant(self.lambdas)
        lambdas = _arrays.float64(lambdas, query)[:, None, None] / number
        rows = lambdas * _arrays.float64(self._embedded(q, keys - queries, queries), query)[:, None]
        columns = _arrays.float64(self._embedded(k, 0, keys), key)[:, None]
        return (
            _arrays.with_channels(query, rows),
            _arrays.with_channels(key, columns),
            number,
        )

    def _embedded(
        self, positions: NDArray[np.int32] | None, first: int, length: int
    ) -> NDArray[np.float64]:
        """Sines and cosines of positions (1 or batch, length), (1 or batch, length, dimension)."""
        given = np.arange(first, first + length)[None] if positions is None else positions
        angles = given[..., None] * np.array(self._frequencies())
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


@dataclass(frozen=True, eq=False)
class T5(DistanceBias):
    """T5's learned numbers for buckets of distances, fine near and coarse far.

    bias = values[h, bucket(d)]

    With n buckets a side (n is half of them if bidirectional, the second half then for keys ahead):
    bucket(d) = |d| for |d| < n/2, n/2 + floor(n/2 log(|d| / (n/2)) / log(max_distance / (n/2))),
    n - 1 at most. If not bidirectional, keys ahead are in bucket 0.

    T5 scales its scores by 1 and adds the same bias in all layers.

    Args:
        values: (heads, buckets), array or tensor, which may require grad. For a model of
            transformers its relative_attention_bias.weight.T.
        bidirectional: True for encoders; False is for causal attention only.
        max_distance: where the last bucket begins, at the latest.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> buckets = np.arange(32.0)[None]
        >>> na.T5(buckets).tensor(1, 400)[0, 0, 0, [0, 350, 390, 399]]
        array([15., 13.,  8.,  0.], dtype=float32)

    Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1; transformers' modeling_t5.py.
    """

    values: Any
    bidirectional: bool = True
    max_distance: int = 128

    def __post_init__(self) -> None:
        values = _validation.numbers("values", self.values, ("heads", "buckets"), least=1)
        _validation.without_nan("values", values)
        both = _validation.boolean("bidirectional", self.bidirectional)
        most = _validation.buckets(int(values.shape[1]), self.max_distance, bidirectional=both)
        self._set(num_heads=int(values.shape[0]), values=values, bidirectional=both)
        self._set(sides="symmetric" if both else "causal", max_distance=most)

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        (values,) = parameters
        return values[:, self._buckets(xp, distance, int(values.shape[1]))]

    def _buckets(self, xp: Any, distance: Any, count: int) -> Any:
        ahead = xp.where(distance < 0, 1, 0)
        side = count // 2 if self.bidirectional else count
        far = xp.abs(distance) if self.bidirectional else xp.where(distance < 0, 0.0, distance)
        exact = side // 2
        # In float32 and in this order, as transformers rounds where a bucket begins.
        ratio = xp.asarray(xp.clip(far, exact, None), dtype=xp.float32) / exact
        steps = xp.log(ratio) / math.log(self.max_distance / exact) * (side - exact)
        coarse = xp.clip(exact + xp.asarray(steps, dtype=xp.int64), None, side - 1)
        bucket = xp.where(far < exact, xp.asarray(far, dtype=xp.int64), coarse)
        return bucket + ahead * side if self.bidirectional else bucket


@dataclass(frozen=True, eq=False)
class DistanceTable(DistanceBias):
    """Any numbers over distance.

    bias = table[h, d - begin]

    Args:
        table: (heads, distances), array or tensor, which may require grad; -inf hides.
        begin: the distance of the first; from 0 on it is for causal attention only.

    Raises:
        TypeError, ValueError: an argument is wrong. In `attention`, if a distance that is seen is
            not in the table.

    Example:
        >>> import ntk_alibi as na
        >>> na.DistanceTable([[0.0, -1.0, -3.0]], begin=-1).tensor(2, 2)[0, 0]
        array([[-1.,  0.],
               [-3., -1.]], dtype=float32)
    """

    table: Any
    begin: int = 0
    _kept: ClassVar[bool] = False

    def __post_init__(self) -> None:
        table, begin = _validation.distance_table(self.table, self.begin)
        sides = "causal" if begin >= 0 else "symmetric"
        self._set(table=table, begin=begin, num_heads=int(table.shape[0]), sides=sides)

    def over(self, first: int, last: int, like: Any = None) -> Any:
        """See `DistanceBias`."""
        _validation.covered(self.begin, self.table.shape[1], (first, last))
        begin = max(first - self.begin, 0)
        part = self.table[:, begin : begin + last - first + 1]
        return _arrays.float64(part if _arrays.is_tensor(like) else _constant(part), like)


@dataclass(frozen=True, eq=False, init=False)
class DistanceFunction(DistanceBias):
    """Any function of distance.

    bias = function(d)[h]

    Args:
        function: takes float64 distances (n,), integers in value, negative for keys ahead, as an
            array; returns an array or a tensor, which may require grad, of shape (heads, n) or, for
            all heads, (n,). -inf hides.
        num_heads: H >= 1.

    Raises:
        TypeError, ValueError: an argument is wrong, or what the function returns.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> bias = na.DistanceFunction(lambda d: -np.sqrt(abs(d)), num_heads=1)
        >>> bias.tensor(1, 5)[0, 0, 0, [0, 3, 4]]
        array([-2., -1., -0.], dtype=float32)
    """

    function: Callable[[NDArray[np.float64]], Any]
    num_heads: int
    _kept: ClassVar[bool] = False

    def __init__(self, function: Callable[[NDArray[np.float64]], Any], num_heads: int) -> None:
        _validation.function(function)
        self._set(function=function, num_heads=_validation.num_heads(num_heads), sides="symmetric")
        self._evaluated(0, 1)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """One of its values, which knows whether gradients are recorded."""
        return (self._evaluated(0, 0),)

    def over(self, first: int, last: int, like: Any = None) -> Any:
        """See `DistanceBias`."""
        values = self._evaluated(first, last)
        if not _arrays.is_tensor(like):
            values = _constant(values)
        wide = _arrays.float64(values, like)
        return _arrays.namespace(like).broadcast_to(wide, (self.num_heads, wide.shape[-1]))

    def _evaluated(self, first: int, last: int) -> Any:
        values = self.function(np.arange(first, last + 1, dtype=np.float64))
        _validation.function_result(values, self.num_heads, last - first + 1)
        return values
