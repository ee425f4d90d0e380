"""Every check of arguments, and every message, in one place.

Public functions call these once, before any work; what lies below them may trust its arguments. A
wrong type is a TypeError, a wrong value a ValueError; each message names the argument, what was
expected and what came.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays
from ntk_alibi._arrays import DTypeLike

#: Lengths and positions are 32-bit in the kernels.
MAX_LENGTH = 2**31 - 1


def integer(name: str, value: Any, *, minimum: int, maximum: int = MAX_LENGTH) -> int:
    """Value as an int in [minimum, maximum]."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} must be between {minimum} and {maximum}, got {number}")
    return number


def finite(name: str, value: Any, *, minimum: float, inclusive: bool = True) -> float:
    """Value as a finite float >= minimum (> minimum unless inclusive)."""
    if isinstance(value, bool | np.bool_ | str):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number) or number < minimum or (number == minimum and not inclusive):
        relation = ">=" if inclusive else ">"
        raise ValueError(f"{name} must be a finite number {relation} {minimum:g}, got {value!r}")
    return number


def choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Value if it is one of choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return cast(str, value)


def keys(
    name: str, mapping: Any, *, required: Collection[str], optional: Collection[str] = ()
) -> None:
    """That mapping is one, with all required keys and no unknown ones."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{name} must be a mapping, got {mapping!r}")
    missing = [key for key in required if key not in mapping]
    unknown = [key for key in mapping if key not in {*required, *optional}]
    if missing or unknown:
        expected = ", ".join([*required, *(f"{key} (optional)" for key in optional)])
        wrong = [f"{key!r} is missing" for key in missing] + [
            f"{key!r} is unknown" for key in unknown
        ]
        raise ValueError(f"{name} must have the keys {expected}; {'; '.join(wrong)}")


def num_heads(value: Any) -> int:
    """A number of attention heads."""
    return integer("num_heads", value, minimum=1)


def scaling(value: Any) -> Any:
    """None or an object with the method of a scaling."""
    if value is not None and (
        isinstance(value, type) or not callable(getattr(value, "scale_exponents", None))
    ):
        raise TypeError(
            "scaling must be None or an object with a method scale_exponents(exponents, lengths) "
            f"such as NTK(factor=4.0), got {value!r}"
        )
    return value


def lengths(value: Any, *, ndim: tuple[int, ...] = (1,)) -> NDArray[np.int64]:
    """Numbers of tokens: integers in [0, 2^31), of one of the given ranks."""
    array = _arrays.to_numpy(value)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"lengths must be integers, got {value!r}")
    if array.ndim not in ndim:
        shapes = " or ".join({1: "(batch,)", 2: "(batch, queries)"}[n] for n in ndim)
        raise ValueError(f"lengths must have shape {shapes}, got {array.shape}")
    if array.size and not (array.min() >= 0 and array.max() <= MAX_LENGTH):
        raise ValueError(f"lengths must be between 0 and {MAX_LENGTH}, got {value!r}")
    return array.astype(np.int64)


def attention_mask(value: Any) -> NDArray[np.uint8]:
    """A padding mask (batch, keys) of 0 and 1, any dtype."""
    if not isinstance(value, np.ndarray) and not _arrays.is_tensor(value):
        raise TypeError(f"attention_mask must be a NumPy array or a torch tensor, got {value!r}")
    mask = _arrays.to_numpy(value)
    if mask.ndim != 2:
        raise ValueError(f"attention_mask must have shape (batch, keys), got {mask.shape}")
    if mask.shape[1] > MAX_LENGTH:
        raise ValueError(f"attention_mask must have at most {MAX_LENGTH} keys, got {mask.shape[1]}")
    ones = mask == 1
    if not np.logical_or(ones, mask == 0).all():
        other = mask[~ones & (mask != 0)].flat[0]
        raise ValueError(f"attention_mask must hold only 0 and 1, got {other}")
    return np.ascontiguousarray(ones).view(np.uint8)


def floating_dtype(value: DTypeLike, allowed: Collection[str]) -> str:
    """The name of a floating dtype that is one of allowed."""
    try:
        name = _arrays.dtype_name(value)
    except TypeError:
        raise TypeError(f"dtype must be a NumPy or torch dtype, got {value!r}") from None
    if name not in allowed:
        raise TypeError(f"dtype must be one of {', '.join(allowed)}, got {name}")
    return name


def out(value: Any, shape: tuple[int, ...], dtype: str, *, torch: bool) -> None:
    """A caller's buffer: framework, shape and dtype as asked, contiguous, writable, in memory."""
    kind = "torch tensor" if torch else "NumPy array"
    if not (_arrays.is_tensor(value) if torch else isinstance(value, np.ndarray)):
        raise TypeError(f"out must be a {kind}, got {type(value).__name__}")
    if tuple(value.shape) != shape or _arrays.dtype_name(value.dtype) != dtype:
        raise ValueError(
            f"out must have shape {shape} and dtype {dtype}, "
            f"got {tuple(value.shape)} and {_arrays.dtype_name(value.dtype)}"
        )
    if _arrays.is_tensor(value):
        in_memory = value.device.type == "cpu"
        usable = in_memory and value.is_contiguous() and not value.requires_grad
    else:
        usable = value.flags.c_contiguous and value.flags.writeable
    if not usable:
        raise ValueError("out must be contiguous, writable, in main memory and not require grad")


def slopes(name: str, value: Any, heads: int) -> None:
    """Slopes of shape (heads,), (batch, heads) or (batch, heads, queries), floating, not NaN."""
    array = _arrays.to_numpy(value)
    if array.dtype.kind != "f":
        raise TypeError(f"{name} must be floating, got dtype {array.dtype}")
    if array.ndim not in (1, 2, 3):
        raise ValueError(
            f"{name} must have shape (heads,), (batch, heads) or (batch, heads, queries), "
            f"got {array.shape}"
        )
    got = array.shape[0] if array.ndim == 1 else array.shape[1]
    if got != heads:
        raise ValueError(f"{name} must have {heads} heads, got {got} (shape {array.shape})")
    if np.isnan(array).any():
        raise ValueError(f"{name} must not hold NaN")


def slopes_for_sides(value: Any, sides: str, heads: int, *, scaled: bool) -> None:
    """Own slopes of an ALiBi bias, or None, against its other arguments."""
    if sides == "halves" and heads % 2:
        raise ValueError(f"num_heads must be even for sides='halves', got {heads}")
    if sides == "two_slopes" and not (isinstance(value, tuple) and len(value) == 2):
        raise ValueError(
            f"slopes must be a pair (left, right) for sides='two_slopes', got {value!r}"
        )
    if value is None:
        return
    if scaled:
        raise ValueError("scaling must be None when slopes are given, which no scaling stretches")
    if sides != "two_slopes":
        slopes("slopes", value, heads)
        return
    for side, side_slopes in zip(("left", "right"), value, strict=True):
        slopes(f"slopes ({side})", side_slopes, heads)


def slope_shapes(left: tuple[int, ...], right: tuple[int, ...], query_length: int) -> None:
    """That left and right slopes (1 or batch, heads, 1 or queries) fit together."""
    if left[0] != right[0] and 1 not in (left[0], right[0]):
        raise ValueError(
            f"slopes must have one batch size, got {left[0]} on the left and {right[0]} on the "
            "right"
        )
    for shape in (left, right):
        if shape[2] not in (1, query_length):
            raise ValueError(f"slopes must be given for {query_length} queries, got {shape[2]}")


def constant(name: str, value: Any) -> NDArray[Any]:
    """An array or a tensor that does not require grad, as NumPy."""
    if _arrays.is_tensor(value) and value.requires_grad:
        raise ValueError(
            f"{name} must not require grad here, where the result is a constant: pass "
            f"{name}.detach()"
        )
    return _arrays.to_numpy(value)


def row_lengths(value: Any, key_length: int) -> NDArray[np.int64]:
    """Real tokens of each row, (batch,), at most key_length; one full row if None."""
    checked = lengths([key_length] if value is None else value)
    if checked.max(initial=0) > key_length:
        raise ValueError(f"lengths must be at most key_length {key_length}, got {checked.max()}")
    return checked


def key_only(scaling: Any, per: str | None) -> None:
    """A scaling whose slopes are the same for all queries of a row."""
    if per == "query":
        raise ValueError(
            "scaling must not have per='query' here, where all queries share one bias; got "
            f"{scaling!r}. "
            "ALiBi(...).tensor(...) and patch(...) take it"
        )


def scaled_exponents(scaling: Any, exponents: NDArray[np.float64], heads: int) -> None:
    """What a scaling returned."""
    if exponents.ndim not in (1, 2, 3) or exponents.shape[0 if exponents.ndim == 1 else 1] != heads:
        raise ValueError(
            f"scale_exponents must return ({heads},), (batch, {heads}) or (batch, {heads}, "
            "queries), "
            f"got {exponents.shape} from {scaling!r}"
        )
    if not np.isfinite(exponents).all():
        raise ValueError(
            f"scale_exponents must return finite numbers, got {exponents} from {scaling!r}"
        )
