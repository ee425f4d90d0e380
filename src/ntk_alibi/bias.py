"""Bias objects, and dense bias tensors from the compiled core."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core, _validation
from ntk_alibi._arrays import Array, DTypeLike
from ntk_alibi.scaling import NTK, Interpolation, Scaling
from ntk_alibi.slopes import prefix_lengths, scaled_slopes, scaling_per

Sides: TypeAlias = Literal["causal", "symmetric", "halves", "two_slopes"]
SIDES = ("causal", "symmetric", "halves", "two_slopes")


def build_alibi_tensor(
    attention_mask: Array,
    num_heads: int,
    dtype: DTypeLike,
    scaling: Scaling | None = None,
    *,
    anchor: Literal["first", "last"] = "first",
    out: Array | None = None,
) -> Array:
    """The key-only ALiBi bias of BLOOM and Falcon, a drop-in for transformers' function.

    out[b H + h, 0, k] = m_h (p_k - p_0)

    p_k counts the real tokens of row b before key k. Softmax is blind to a constant per query, so
    with a causal mask this equals the relative form -m_h (i - k). p_0 = 0 for anchor="first", as in
    transformers: the newest token has the largest value, which bfloat16 and float16 round most.
    With anchor="last" p_0 is the newest token's position: the bias is zero there, near tokens are
    exact and far ones may collide. Padding gets 0.

    Args:
        attention_mask: (batch, keys) of 0 and 1, any dtype; padding left, right or in holes.
        num_heads: H, any number >= 1.
        dtype: NumPy's or torch's float32, bfloat16, float16 or float64 (float32 values, widened).
        scaling: a scaling, or None; a dynamic one takes each row's number of real tokens.
        anchor: "first" or "last".
        out: a buffer for the result, of its framework, shape and dtype; filled and returned.

    Returns:
        (batch * heads, 1, keys) of dtype, NumPy for NumPy and a tensor for a tensor, on the mask's
        device (made in main memory and copied for others). Products are float32, rounded to nearest
        even.

    Raises:
        TypeError, ValueError: an argument is wrong; the scaling has per="query", which needs a bias
            per query.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> na.build_alibi_tensor(np.array([[0, 1, 1, 1]]), 1, np.float32)
        array([[[0.        , 0.        , 0.00390625, 0.0078125 ]]], dtype=float32)

    Source: Press et al. 2022; transformers' modeling_bloom.py for the key-only form.
    """
    mask = _validation.attention_mask(attention_mask)
    heads = _validation.num_heads(num_heads)
    name = _validation.floating_dtype(dtype, (*_arrays.CORE_DTYPES, "float64"))
    _validation.scaling(scaling)
    _validation.choice("anchor", anchor, ("first", "last"))
    _validation.key_only(scaling, scaling_per(scaling))
    batch, key_length = mask.shape
    lengths = mask.sum(axis=1, dtype=np.int64) if scaling_per(scaling) else None
    slopes = _with_axes(scaled_slopes(heads, scaling, lengths))

    def write(storage: NDArray[Any], dtype: _core.DType) -> None:
        _core.key_bias(mask, slopes, getattr(_core.Anchor, anchor), dtype, storage)

    shape = (batch * heads, 1, key_length)
    result = _filled(write, shape, name, out, torch=_arrays.is_tensor(attention_mask))
    return _arrays.on_device_of(attention_mask, result)


class ALiBi:
    """Attention with linear biases: scores fall in proportion to the distance of query and key.

    bias[b, h, i, j] = -m_h |i - j|, with a slope of its own for each side:

    sides="causal": keys behind the query only; -inf for those ahead.
    sides="symmetric": the same slope on both sides.
    sides="halves": the first half of the heads sees itself and what is behind, the second half
        itself and what is ahead, each with the slopes of H/2 heads.
    sides="two_slopes": separate left and right slopes, given as a pair.

    Args:
        num_heads: H >= 1; even for "halves".
        scaling: a scaling of the standard slopes, or None. Not together with slopes.
        slopes: own slopes instead of the standard ones: array or tensor of shape (heads,), (batch,
            heads) or (batch, heads, queries), or for "two_slopes" a pair (left, right) of them.
            Learned slopes are usually stored as x with slope sigmoid(x), x ~ N(-2, 1). +inf masks a
            head's side.
        sides: see above.

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

    __slots__ = ("num_heads", "scaling", "sides", "slopes")

    num_heads: int
    scaling: Scaling | None
    slopes: Any
    sides: Sides

    def __init__(
        self,
        num_heads: int,
        scaling: Scaling | None = None,
        *,
        slopes: Any = None,
        sides: Sides = "causal",
    ) -> None:
        heads = _validation.num_heads(num_heads)
        _validation.scaling(scaling)
        _validation.choice("sides", sides, SIDES)
        _validation.slopes_for_sides(slopes, sides, heads, scaled=scaling is not None)
        for name, value in zip(self.__slots__, (heads, scaling, sides, slopes), strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ALiBi is immutable: {name} cannot be changed")

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_alibi, (self.num_heads, self.scaling, self.slopes, self.sides)

    def __repr__(self) -> str:
        own = "" if self.slopes is None else f", slopes={self.slopes!r}"
        scaling = f"scaling={self.scaling!r}"
        return f"ALiBi(num_heads={self.num_heads}, {scaling}{own}, sides={self.sides!r})"

    def _repr_html_(self) -> str | None:
        from ntk_alibi import _rich

        return _rich.bias_html(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ALiBi):
            return NotImplemented
        mine, others = (
            (bias.num_heads, bias.scaling, bias.sides, _slope_values(bias.slopes))
            for bias in (self, other)
        )
        return mine == others

    def __hash__(self) -> int:
        return hash((self.num_heads, self.scaling, self.sides, _slope_values(self.slopes)))

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
        queries = _validation.integer("query_length", query_length, minimum=0)
        keys = _validation.integer("key_length", key_length, minimum=0)
        name = _validation.floating_dtype(
            np.float32 if dtype is None else dtype, _arrays.CORE_DTYPES
        )
        if dtype is None and out is not None:
            name = _validation.floating_dtype(out.dtype, _arrays.CORE_DTYPES)
        left, right = self.left_right(
            queries, self._lengths(queries, _validation.row_lengths(lengths, keys))
        )
        shape = (max(left.shape[0], right.shape[0]), self.num_heads, queries, keys)

        def write(storage: NDArray[Any], dtype: _core.DType) -> None:
            _core.relative_bias(left, right, dtype, storage)

        examples = (*both_sides(self.slopes), lengths, out)
        torch = _arrays.is_torch_dtype(dtype) or any(map(_arrays.is_tensor, examples))
        return _filled(write, shape, name, out, torch=torch)

    def _lengths(
        self, query_length: int, row_lengths: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """What the scaling asks for, from the number of real tokens of each row."""
        per = scaling_per(self.scaling)
        if per == "query":
            return prefix_lengths(row_lengths, query_length)
        return None if per is None else row_lengths

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
            _with_axes(_validation.constant("slopes", side)) for side in both_sides(self.slopes)
        )
        _validation.slope_shapes(left.shape, right.shape, query_length)
        return _masked_sides(left, right, self.sides)


def _left_right(
    num_heads: int, scaling: Scaling | None, sides: Sides, lengths: NDArray[np.int64] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    heads = num_heads // 2 if sides == "halves" else num_heads
    slopes = _with_axes(scaled_slopes(heads, scaling, lengths))
    if sides == "halves":
        slopes = np.concatenate([slopes, slopes], axis=1)
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


def hidden_sides(sides: Sides, heads: int) -> NDArray[np.bool_]:
    """Which heads do not see their left and their right, (2, 1, heads, 1)."""
    hidden = np.zeros((2, 1, heads, 1), np.bool_)
    if sides == "causal":
        hidden[1] = True
    elif sides == "halves":
        hidden[0, :, heads // 2 :] = hidden[1, :, : heads // 2] = True
    return hidden


def _make_alibi(num_heads: int, scaling: Scaling | None, slopes: Any, sides: Sides) -> ALiBi:
    return ALiBi(num_heads, scaling, slopes=slopes, sides=sides)


def both_sides(slopes: Any) -> tuple[Any, Any]:
    """Left and right of a pair, or of one for both."""
    return slopes if isinstance(slopes, tuple) else (slopes, slopes)


def _slope_values(slopes: Any) -> Any:
    """Something hashable that equals for equal slopes."""
    if slopes is None:
        return None
    arrays = [_arrays.to_numpy(side) for side in both_sides(slopes)]
    return tuple((array.shape, array.dtype.name, array.tobytes()) for array in arrays)


def _with_axes(slopes: NDArray[Any]) -> NDArray[np.float32]:
    axes: NDArray[np.float32] = with_axes(np.asarray(slopes, np.float32))
    return axes


def with_axes(slopes: Any) -> Any:
    """Slopes, an array or a tensor, as (1 or batch, heads, 1 or queries)."""
    if slopes.ndim == 1:
        return slopes[None, :, None]
    return slopes[:, :, None] if slopes.ndim == 2 else slopes


def _filled(
    write: Callable[[NDArray[Any], _core.DType], None],
    shape: tuple[int, ...],
    dtype: str,
    out: Array | None,
    *,
    torch: bool,
) -> Array:
    """The caller's buffer or a new array, filled by write(memory, dtype).

    float64 is widened float32.
    """
    if out is not None:
        _validation.out(out, shape, dtype, torch=torch)
    core_dtype = "float32" if dtype == "float64" else dtype
    result = (
        _arrays.empty(shape, core_dtype, torch=torch) if out is None or dtype == "float64" else out
    )
    write(_arrays.storage(result), _arrays.CORE_DTYPES[core_dtype])
    return result if dtype == core_dtype else _arrays.widened(result, out)
