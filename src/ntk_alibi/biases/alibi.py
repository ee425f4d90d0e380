"""ALiBi: biases linear in distance."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array, DTypeLike
from ntk_alibi.biases import checks
from ntk_alibi.biases.base import BiasObject, KernelBias, result_dtype
from ntk_alibi.biases.dense import relative, set_exempt
from ntk_alibi.biases.slopes import (
    SIDES,
    Sides,
    both_sides,
    float_with_axes,
    hidden_sides,
    left_heads,
    prefix_lengths,
    scaled_slopes,
    scaling_per,
)
from ntk_alibi.masks import Problem
from ntk_alibi.scaling import NTK, Interpolation, Scaling


@dataclass(frozen=True, eq=False, repr=False)
class ALiBi(BiasObject):
    """Attention with linear biases: scores fall in proportion to the distance of query and key.

    bias[b, h, i, j] = -m_h |i - j|, with a slope of its own for each side:

    sides="causal": keys behind the query only; -inf for those ahead.
    sides="symmetric": the same slope on both sides.
    sides="halves": the first ceil(H/2) heads see a token itself and what is behind, the other
        floor(H/2) itself and what is ahead, with the slopes of so many heads each.
    sides="two_slopes": separate left and right slopes, given as a pair.

    Args:
        num_heads: H >= 1.
        scaling: a scaling of the standard slopes, or None. Not together with slopes.
        slopes: own slopes instead of the standard ones: array or tensor of shape (heads,), (batch,
            heads) or (batch, heads, queries), or for "two_slopes" a pair (left, right) of them.
            Learned slopes are usually stored as x with slope sigmoid(x), x ~ N(-2, 1). +inf masks a
            head's side.
        sides: see above.
        exempt: tokens at positions below this have no bias, as queries and as keys; 1 for a CLS
            token in front. What a side or a mask hides stays hidden.

    Raises:
        TypeError, ValueError: an argument is wrong, or two of them contradict each other.

    Example:
        >>> import ntk_alibi as na
        >>> na.ALiBi(8, na.NTK(4.0))
        ALiBi(num_heads=8, scaling=NTK(factor=4.0), sides='causal')
        >>> na.ALiBi(2, sides="symmetric").tensor(2, 3)[0, 0]
        array([[-0.0625,  0.    , -0.0625],
               [-0.125 , -0.0625,  0.    ]], dtype=float32)

    Source: Press et al. 2022 (arXiv 2108.12409); the encoder forms from issue 5 of its repository.
    """

    num_heads: int
    scaling: Scaling | None = None
    slopes: Any = field(default=None, kw_only=True)
    sides: Sides = field(default="causal", kw_only=True)
    exempt: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        heads = _checks.num_heads(self.num_heads)
        checks.scaling(self.scaling)
        _checks.choice("sides", self.sides, SIDES)
        checks.slopes_for_sides(self.slopes, self.sides, heads, scaled=self.scaling is not None)
        self._set(num_heads=heads, exempt=_checks.integer("exempt", self.exempt, minimum=0))

    def __repr__(self) -> str:
        own = "" if self.slopes is None else f", slopes={self.slopes!r}"
        exempt = f", exempt={self.exempt}" if self.exempt else ""
        scaling = f"scaling={self.scaling!r}"
        return f"ALiBi(num_heads={self.num_heads}, {scaling}{own}, sides={self.sides!r}{exempt})"

    @property
    def parameters(self) -> tuple[Any, ...]:
        """Its own slopes, left and right."""
        return () if self.slopes is None else both_sides(self.slopes)

    def tensor(
        self,
        query_length: int,
        key_length: int,
        dtype: DTypeLike | None = None,
        lengths: Any = None,
        out: Array | None = None,
    ) -> Array:
        """The dense relative bias, the last query aligned with the last key.

        out[b, h, i, j] = -m_left d for d > 0, 0 for d = 0, m_right d for d < 0;  d = (key_length -
        query_length + i) - j

        Args:
            query_length: Q >= 0.
            key_length: K >= 0.
            dtype: NumPy's or torch's float32 (default), bfloat16 or float16.
            lengths: (batch,) integers <= key_length, the numbers of real tokens of rows whose last
                token is the last key (left padding), for a dynamic scaling; key_length for one row
                if not given.
            out: a buffer for the result, of its framework, shape and dtype; filled and returned.

        Returns:
            (1 or batch, heads, Q, K): a tensor if dtype is torch's, or slopes, lengths or out is a
            tensor; else NumPy. Values are float32 products, rounded to nearest even; distances are
            exact integers below 2^24.

        Raises:
            TypeError, ValueError: an argument is wrong; slopes require grad (a dense bias is a
                constant).
        """
        queries = _checks.integer("query_length", query_length, minimum=0)
        keys = _checks.integer("key_length", key_length, minimum=0)
        name = result_dtype(dtype, out)
        left, right = self.left_right(
            queries, self._lengths(queries, checks.row_lengths(lengths, keys))
        )
        examples = (*both_sides(self.slopes), lengths, out)
        torch = _arrays.is_torch_dtype(dtype) or any(map(_arrays.is_tensor, examples))
        result = relative(left, right, queries, keys, name, out, torch=torch)
        if self.exempt:
            set_exempt(result, self.exempt, 0.0)
        return result

    def _lengths(
        self, query_length: int, row_lengths: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """What the scaling asks for, from the number of real tokens of each row."""
        per = scaling_per(self.scaling)
        if per == "query":
            return prefix_lengths(row_lengths, query_length)
        return None if per is None else row_lengths

    def kernel_bias(self, problem: Problem) -> KernelBias:
        """Its slopes for a problem, dynamic ones too."""
        left, right = self.left_right(problem.shape[2], self._counted(problem))
        return KernelBias(left=left, right=right, exempt=self.exempt)

    def _counted(self, problem: Problem) -> NDArray[np.int64] | None:
        """Real tokens of each row, or for per="query" up to each query; None if not asked for."""
        per = scaling_per(self.scaling)
        if per is None:
            return None
        queries, keys = problem.shape[2:]
        real = np.ones((1, keys), np.uint8) if problem.mask is None else problem.mask
        if per == "sequence":
            rows: NDArray[np.int64] = real.sum(axis=1, dtype=np.int64)
            return rows
        if problem.query_positions is not None:
            positions: NDArray[np.int64] = problem.query_positions.astype(np.int64) + 1
            return positions
        counts = np.pad(real.cumsum(axis=1, dtype=np.int64), ((0, 0), (1, 0)))
        columns = np.arange(keys - queries, keys)
        prefixes: NDArray[np.int64] = counts[:, np.maximum(columns + 1, 0)]
        return prefixes

    def left_right(
        self, query_length: int, lengths: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Left and right slopes, (1 or batch, heads, 1 or queries); +inf where a side is masked.

        Args:
            query_length: Q.
            lengths: as the scaling's `per` asks for them.
        """
        if self.slopes is None:
            if self.scaling is None or isinstance(self.scaling, Interpolation | NTK):
                return _constant_left_right(self.num_heads, self.scaling, self.sides)
            return _left_right(self.num_heads, self.scaling, self.sides, lengths)
        left, right = (
            float_with_axes(_checks.constant("slopes", side)) for side in both_sides(self.slopes)
        )
        checks.slope_shapes(left.shape, right.shape, query_length)
        return _masked_sides(left, right, self.sides)


def _left_right(
    num_heads: int, scaling: Scaling | None, sides: Sides, lengths: NDArray[np.int64] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    if sides != "halves":
        slopes = float_with_axes(scaled_slopes(num_heads, scaling, lengths))
    else:
        halves = (left_heads(num_heads), num_heads - left_heads(num_heads))
        slopes = np.concatenate(
            [float_with_axes(scaled_slopes(n, scaling, lengths)) for n in halves if n], axis=1
        )
    return _masked_sides(slopes, slopes, sides)


@functools.lru_cache(maxsize=64)
def _constant_left_right(
    num_heads: int, scaling: Interpolation | NTK | None, sides: Sides
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Kept, since with few tokens they would cost more than the attention."""
    left, right = _left_right(num_heads, scaling, sides, None)
    left.flags.writeable = right.flags.writeable = False
    return left, right


def _masked_sides(
    left: NDArray[np.float32], right: NDArray[np.float32], sides: Sides
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    hidden = hidden_sides(sides, left.shape[1])
    infinity = np.float32(np.inf)
    return np.where(hidden[0], infinity, left), np.where(hidden[1], infinity, right)
