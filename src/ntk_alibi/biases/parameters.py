"""Parameters of biases: checked where a bias is made, converted where a call uses it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ntk_alibi import _arrays, _checks

#: NumPy's kinds of complex numbers, strings, dates and time spans.
NO_NUMBERS = "cSUmM"


def numbers(name: str, value: Any, axes: tuple[str, ...], *, least: int = 0) -> Any:
    """Return an array of numbers with these axes, each at least `least` long.

    Arrays become a read-only float64 copy; tensors are returned unchanged.
    """
    array = _real_numbers(name, value)
    if array.ndim != len(axes) or min(array.shape) < least:
        raise ValueError(f"{name} must have shape ({', '.join(axes)}), got {tuple(array.shape)}")
    return array


def per_head(
    name: str,
    value: Any,
    heads: int | None = None,
    *,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> Any:
    """Return a finite number for each head, (heads,), as `numbers` does.

    Unless heads is None, one number may stand for all heads.
    """
    array = _real_numbers(name, value)
    if array.ndim == 0 and heads is not None:
        array = array.expand(heads) if _arrays.is_tensor(array) else np.repeat(array, heads)
    if array.ndim != 1 or array.shape[0] == 0:
        raise ValueError(f"{name} must have shape (heads,), got {tuple(array.shape)}")
    if heads is not None and array.shape[0] != heads:
        raise ValueError(f"{name} must have {heads} heads, got {array.shape[0]}")
    if _arrays.has_values(array):
        read = _arrays.to_numpy(array)
        wrong = read[~(np.isfinite(read) & (read > above) & (read <= at_most))]
        if wrong.size:
            limits = [f"> {above:g}"] * (above > -math.inf)
            limits += [f"<= {at_most:g}"] * (at_most < math.inf)
            expected = " and ".join(["finite", *limits])
            raise ValueError(f"{name} must be {expected}, got {wrong[0]}")
    return array


def _real_numbers(name: str, value: Any) -> Any:
    _checks.check_plain(name, value)
    if _arrays.is_tensor(value):
        check_floating(name, value.dtype)
        return value
    try:
        if np.asarray(value).dtype.kind in NO_NUMBERS:
            raise TypeError
        array = np.array(value, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold real numbers, got {value!r}") from None
    array.flags.writeable = False
    return array


def check_floating(name: str, dtype: Any) -> None:
    """Check that numbers of a bias have a floating dtype."""
    if _arrays.dtype_name(dtype) not in (*_arrays.CORE_DTYPES, "float64"):
        raise TypeError(f"{name} must be floating, got dtype {dtype}")


def without_nan(name: str, array: Any) -> None:
    """Check that numbers contain no NaN and no +infinity."""
    if _arrays.has_values(array):
        read = _arrays.to_numpy(array)
        wrong = read[np.isnan(read) | np.isposinf(read)]
        if wrong.size:
            raise ValueError(f"{name} must not hold NaN or infinity, got {wrong[0]}")


def parameter(
    x: Any, like: Any, *, name: str = "a parameter of the bias", widest: bool = False
) -> Any:
    """Convert a parameter of a bias to like's framework, for use in `kernel_bias`.

    Args:
        x: an array or a tensor.
        like: the argument of `kernel_bias`: None for NumPy numbers, or a tensor of the call.
        name: the parameter's name in messages.
        widest: True for float64; False for float32, and float64 if like is a float64 tensor.

    Raises:
        ValueError: x requires grad, but would become a constant.
    """
    if _arrays.is_tensor(like):
        dtype = "float64" if widest else _arrays.wide_dtype(like)
        array = x if _arrays.is_tensor(x) else np.asarray(x, np.float64)
        return tensor_of(name, array, like, dtype)
    constant = _checks.constant(name, x)
    return np.asarray(constant, np.float64) if widest else _checks.as_float32(name, constant)


def tensor_of(name: str, x: Any, like: Any, dtype: str | None) -> Any:
    """Return numbers of a bias as a tensor on like's device; dtype None keeps their dtype.

    Raises:
        ValueError: a finite number in main memory is beyond the range of float32.
    """
    if not like.is_meta and not _arrays.is_tracing():
        _checks.check_has_values(name, x)
    if dtype == "float32" and _arrays.is_in_main_memory(x) and _arrays.has_values(x):
        _checks.as_float32(name, _arrays.to_numpy(x))
    return _arrays.as_tensor(x, like, dtype)
