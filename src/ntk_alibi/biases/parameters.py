"""Parameters of biases: checked when a bias is made, converted when a call uses it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import has_values, is_tracing

#: NumPy's kinds of dtypes that are not real: complex, strings, dates and time spans.
NOT_REAL = "cSUmM"


def as_float64(name: str, values: Any) -> NDArray[np.float64]:
    """Return a copy of real values as float64."""
    _checks.check_plain(name, values)
    given = _checks.constant(name, values) if _arrays.is_tensor(values) else values
    try:
        if given is None or np.asarray(given).dtype.kind in NOT_REAL:
            raise TypeError
        return np.array(given, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must hold real values, got {_checks.briefly(values)}") from None


def checked_array(name: str, value: Any, axes: tuple[str, ...], *, least: int = 0) -> Any:
    """Check that a parameter has these axes, each at least `least` long, and return it.

    Arrays become a read-only float64 copy; tensors are returned unchanged.
    """
    array = _as_real_array(name, value)
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
    """Check a parameter with a finite value per head and return it, (heads,), as `checked_array`.

    Unless heads is None, a single number may be given for all heads.
    """
    array = _as_real_array(name, value)
    if array.ndim == 0 and heads is not None:
        array = backend_of(array).xp.broadcast_to(array, (heads,))
    if array.ndim != 1 or array.shape[0] == 0:
        raise ValueError(f"{name} must have shape (heads,), got {tuple(array.shape)}")
    if heads is not None and array.shape[0] != heads:
        raise ValueError(f"{name} must have {heads} heads, got {array.shape[0]}")
    if has_values(array):
        values = _arrays.to_numpy(array)
        wrong = values[~(np.isfinite(values) & (values > above) & (values <= at_most))]
        if wrong.size:
            limits = [f"> {above:g}"] * (above > -math.inf)
            limits += [f"<= {at_most:g}"] * (at_most < math.inf)
            expected = " and ".join(["finite", *limits])
            raise ValueError(f"{name} must be {expected}, got {wrong[0]}")
    return array


def _as_real_array(name: str, value: Any) -> Any:
    _checks.check_plain(name, value)
    if _arrays.is_tensor(value):
        check_floating(name, value.dtype)
        return value
    array = as_float64(name, value)
    array.flags.writeable = False
    return array


def check_floating(name: str, dtype: Any) -> None:
    """Check that the dtype of an array is floating."""
    if _arrays.dtype_name(dtype) not in (*_arrays.CORE_DTYPES, "float64"):
        raise TypeError(f"{name} must be floating, got dtype {dtype}")


def check_no_nan(name: str, array: Any) -> None:
    """Check that an array contains no NaN and no +infinity."""
    if has_values(array):
        values = _arrays.to_numpy(array)
        wrong = values[np.isnan(values) | np.isposinf(values)]
        if wrong.size:
            raise ValueError(f"{name} must not hold NaN or infinity, got {wrong[0]}")


def parameter(
    x: Any, like: Any, *, name: str = "a parameter of the bias", widest: bool = False
) -> Any:
    """Convert a parameter of a bias to like's framework, for use in `kernel_bias`.

    Args:
        x: an array or a tensor.
        like: the argument of `kernel_bias`: None for a NumPy array, or a tensor of the call.
        name: the parameter's name in messages.
        widest: True for float64; False for float32, and float64 if like is a float64 tensor.

    Raises:
        ValueError: x requires grad, but would become a constant.
    """
    if _arrays.is_tensor(like):
        dtype = "float64" if widest else _arrays.wide_dtype(like)
        array = x if _arrays.is_tensor(x) else np.asarray(x, np.float64)
        return to_tensor(name, array, like, dtype)
    constant = _checks.constant(name, x)
    return np.asarray(constant, np.float64) if widest else _checks.as_float32(name, constant)


def to_tensor(name: str, x: Any, like: Any, dtype: str | None) -> Any:
    """Convert an array of a bias to a tensor on like's device; dtype None keeps its dtype.

    Raises:
        ValueError: a finite value in main memory is beyond float32's range.
    """
    if not like.is_meta and not is_tracing():
        _checks.check_has_values(name, x)
    if dtype == "float32" and backend_of(x).in_main_memory and has_values(x):
        _checks.as_float32(name, _arrays.to_numpy(x))
    return backend_of(like).convert(x, dtype)
