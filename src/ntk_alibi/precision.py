"""Rounding errors of positions and biases in low-precision dtypes, and their published repairs.

`attention` needs none of this: it keeps positions as integers and biases in float32. This module
measures the errors of code that rounds them, and how much the published repairs gain.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ntk_alibi import _checks
from ntk_alibi._arrays import DTypeLike
from ntk_alibi.biases.parameters import as_float64
from ntk_alibi.positions.rotary import RoPE

Floats: TypeAlias = NDArray[np.float64]
Form: TypeAlias = Literal["absolute", "relative"]


class Format(NamedTuple):
    """A binary floating-point format.

    Attributes:
        significant_bits: bits of the significand, the implicit one included.
        least_exponent: exponent of the smallest normal value.
        greatest: the largest finite value.
    """

    significant_bits: int
    least_exponent: int
    greatest: float


FORMATS = {
    "float16": Format(11, -14, 65504.0),
    "bfloat16": Format(8, -126, (2.0 - 2.0**-7) * 2.0**127),
    "float32": Format(24, -126, (2.0 - 2.0**-23) * 2.0**127),
    "float64": Format(53, -1022, math.ldexp(2.0 - 2.0**-52, 1023)),
}

#: Positions processed at a time, to bound memory.
CHUNK = 2**20


def rounded(numbers: ArrayLike, dtype: DTypeLike) -> Floats:
    """Round values to a dtype: to nearest, ties to even, to infinity beyond the largest value.

    Args:
        numbers: array of any shape, converted to float64.
        dtype: NumPy's or torch's float16, bfloat16, float32 or float64, or its name.

    Returns:
        The rounded values as float64, with the same shape.

    Raises:
        TypeError: dtype is not one of these.

    Example:
        >>> import ntk_alibi as na
        >>> na.precision.rounded([255, 257, 8191], "bfloat16")
        array([ 255.,  256., 8192.])

    Source: IEEE 754, roundTiesToEven.
    """
    return _rounded(as_float64("numbers", numbers), _name(dtype))


def exact_fraction(dtype: DTypeLike, window: int) -> float:
    """Return the share of the positions 0 .. window - 1 that a dtype represents exactly.

    Formula::

        #{p < window: rounded(p) = p} / window

    Args:
        dtype: as for `rounded`.
        window: number of positions, at least 1.

    Returns:
        The share, above 0 and at most 1.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import ntk_alibi as na
        >>> na.precision.exact_fraction("bfloat16", 8192)
        0.109375

    Source: Baichuan's article on position collisions (2023), figure 10: "about 10 %".
    """
    name, window = _name(dtype), _window(window)
    exact = 0
    for begin in range(0, window, CHUNK):
        positions = np.arange(begin, min(begin + CHUNK, window), dtype=np.float64)
        exact += int((_rounded(positions, name) == positions).sum())
    return exact / window


def collisions(dtype: DTypeLike, window: int) -> int:
    """Count the positions 0 .. window - 1 that a dtype rounds to the same value as another one.

    Formula::

        #{p < window: rounded(p) = rounded(p') for some p' < window, p' != p}

    Args:
        dtype: as for `rounded`.
        window: number of positions, at least 1.

    Returns:
        The count, 0 to window.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import ntk_alibi as na
        >>> [na.precision.collisions("bfloat16", n) for n in (257, 259, 8192)]
        [0, 2, 7872]

    Source: Baichuan's article on position collisions (2023).
    """
    name, window = _name(dtype), _window(window)
    colliding = 0
    for begin in range(0, window, CHUNK):
        end = min(begin + CHUNK, window)
        # Rounding keeps the order, so equal values are neighbours. One more position on either
        # side finds collisions across the chunk's ends.
        first = max(begin - 1, 0)
        values = _rounded(np.arange(first, min(end + 1, window), dtype=np.float64), name)
        same = np.concatenate([[False], values[1:] == values[:-1], [False]])
        colliding += int((same[:-1] | same[1:])[begin - first :][: end - begin].sum())
    return colliding


def last_positions(dtype: DTypeLike, window: int, count: int = 100) -> tuple[Floats, Floats]:
    """Return the last positions of a window, exact and rounded to a dtype.

    Args:
        dtype: as for `rounded`.
        window: number of positions, at least 1.
        count: number of positions to return, at least 1; all if the window has fewer.

    Returns:
        (positions, rounded positions), each (count,).

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import ntk_alibi as na
        >>> na.precision.last_positions("bfloat16", 4096, 3)[1]
        array([4096., 4096., 4096.])

    Source: Baichuan's article on position collisions (2023), figure 9.
    """
    window = _window(window)
    count = _checks.integer("count", count, minimum=1)
    positions = np.arange(max(window - count, 0), window, dtype=np.float64)
    return positions, _rounded(positions, _name(dtype))


def alibi_row(slope: float, length: int, dtype: DTypeLike, form: Form) -> Floats:
    """Return ALiBi's bias of the last query, rounded to a dtype in the absolute or relative form.

    Formula, for keys j::

        absolute: rounded(m j) - m (length - 1), as in transformers (before the repair)
        relative: rounded(-m (length - 1 - j))   (after it: near keys are exact, far ones collide)

    float64 gives the exact bias. `build_alibi_tensor` has the absolute form with anchor="first" and
    the relative form with anchor="last"; `ALiBi` has the relative form.

    Args:
        slope: m >= 0.
        length: number of keys, at least 1.
        dtype: as for `rounded`.
        form: "absolute" or "relative".

    Returns:
        (length,) float64.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import ntk_alibi as na
        >>> na.precision.alibi_row(0.5, 1000, "bfloat16", "absolute")[-3:]
        array([-1.5,  0.5,  0.5])
        >>> na.precision.alibi_row(0.5, 1000, "bfloat16", "relative")[-3:]
        array([-1. , -0.5,  0. ])

    Source: Baichuan's article on position collisions (2023), figure 11.
    """
    slope = _checks.finite("slope", slope, minimum=0.0)
    keys = np.arange(_window(length, "length"), dtype=np.float64)
    row: Floats = _alibi(slope, keys[-1:], keys, _name(dtype), form)[0]
    return row


def softmax_error(
    query: ArrayLike, key: ArrayLike, slope: float, dtype: DTypeLike, form: Form
) -> Floats:
    """Return how much attention weights change when ALiBi's bias is rounded to a dtype.

    Formula::

        1/2 sum_j |p_ij - p'_ij|,  p_i = softmax_j(q_i.k_j / sqrt(D) - m (i - j)) over j <= i

    p' has the rounded bias of `alibi_row` instead. Everything else is float64, so the bias is the
    only source of error.

    Args:
        query: (queries, head_dim); the last query is at the last key.
        key: (keys, head_dim), at least as many as queries.
        slope: m >= 0 of the head.
        dtype: as for `rounded`.
        form: "absolute" or "relative", as for `alibi_row`.

    Returns:
        (queries,) float64 in [0, 1]; 1 where the rounded bias is beyond the dtype's range.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> random = np.random.default_rng(0)
        >>> query, key = random.standard_normal((1, 64)), random.standard_normal((8192, 64))
        >>> for form in ("absolute", "relative"):
        ...     error = na.precision.softmax_error(query, key, 2**-0.5, "bfloat16", form)
        ...     print(form, "wrong" if error[0] > 0.1 else "fine")
        absolute wrong
        relative fine

    Source: this package.
    """
    query, key = as_float64("query", query), as_float64("key", key)
    for name, array in (("query", query), ("key", key)):
        if array.ndim != 2:
            raise ValueError(f"{name} must have shape (length, head_dim), got {array.shape}")
    if query.shape[1] != key.shape[1] or len(query) > len(key):
        raise ValueError(
            f"query must have key's head_dim and at most its length {key.shape}, got {query.shape}"
        )
    slope = _checks.finite("slope", slope, minimum=0.0)
    _checks.as_float32("slope", slope)
    k = np.arange(len(key), dtype=np.float64)
    q = k[len(key) - len(query) :]
    scores = np.where(q[:, None] >= k, query @ key.T / math.sqrt(query.shape[1]), -np.inf)
    with np.errstate(invalid="ignore"):
        exact, moved = (
            _softmax(scores + _alibi(slope, q, k, name, form)) for name in ("float64", _name(dtype))
        )
    variation = 0.5 * np.abs(exact - moved).sum(axis=1)
    return np.where(np.isnan(variation), 1.0, variation)


def rope_tables(
    length: int, head_dim: int, dtype: DTypeLike, *, base: float = 10000.0, repaired: bool
) -> tuple[Floats, Floats]:
    """Return RoPE's cosines and sines in a model of this dtype, before or after the repair.

    Before the repair, positions, frequencies base^(-2m/D) and angles are rounded to the dtype.
    After it, all three are float32, and only cosines and sines are rounded to the dtype. `RoPE` is
    more exact than both: its angles are float64, its cosines and sines float32.

    Args:
        length: number of positions, from 0 on.
        head_dim: D, even.
        dtype: as for `rounded`.
        base: base of the frequencies, > 1.
        repaired: whether to return the tables after the repair.

    Returns:
        (cosines, sines), each (length, head_dim / 2) float64.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> for repaired in (False, True):
        ...     tables = na.precision.rope_tables(2048, 64, "bfloat16", repaired=repaired)
        ...     len(np.unique(np.concatenate(tables, axis=1), axis=0))  # distinct rows
        641
        2048

    Source: Baichuan's article on position collisions (2023), its repair of RoPE.
    """
    name = _name(dtype)
    rope = RoPE(head_dim, base)
    inner = "float32" if _checks.boolean("repaired", repaired) else name
    positions = _rounded(np.arange(_window(length, "length"), dtype=np.float64), inner)
    frequencies = _rounded(rope.base ** (-np.arange(rope.pairs) / rope.pairs), inner)
    angles = _rounded(np.multiply.outer(positions, frequencies), inner)
    return _rounded(np.cos(angles), name), _rounded(np.sin(angles), name)


def _rounded(values: Floats, name: str) -> Floats:
    if name == "float64":
        return values
    bits, least, greatest = FORMATS[name]
    exponents = np.maximum(np.frexp(values)[1], least + 1) - bits
    result = np.ldexp(np.rint(np.ldexp(values, -exponents)), exponents)
    return np.where(np.abs(result) > greatest, np.copysign(np.inf, values), result)


def _alibi(slope: float, q: Floats, k: Floats, name: str, form: str) -> Floats:
    """Return the rounded bias (queries, keys) of queries at positions q and keys at positions k."""
    _checks.choice("form", form, ("absolute", "relative"))
    if form == "absolute":
        return _rounded(slope * k, name) - slope * q[:, None]
    return _rounded(slope * (k - q[:, None]), name)


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Floats = weights / weights.sum(axis=1, keepdims=True)
    return result


def _name(dtype: DTypeLike) -> str:
    return _checks.floating_dtype(dtype, FORMATS)


def _window(value: Any, name: str = "window") -> int:
    return _checks.integer(name, value, minimum=1)
