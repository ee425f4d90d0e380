"""Checks of slopes, scalings and the parameters of biases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _torch_state


def lengths(value: Any, *, ndim: tuple[int, ...] = (1,)) -> NDArray[np.int64]:
    """Return numbers of tokens as int64: integers in [0, 2^31), with a rank that ndim allows."""
    array = _checks.constant("lengths", value)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"lengths must be integers, got {value!r}")
    if array.ndim not in ndim:
        shapes = " or ".join({1: "(batch,)", 2: "(batch, queries)"}[n] for n in ndim)
        raise ValueError(f"lengths must have shape {shapes}, got {array.shape}")
    if array.size and not (array.min() >= 0 and array.max() <= _checks.MAX_LENGTH):
        raise ValueError(f"lengths must be between 0 and {_checks.MAX_LENGTH}, got {value!r}")
    return array.astype(np.int64)


def per_head(
    name: str,
    value: Any,
    heads: int | None = None,
    *,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> Any:
    """Return a number for each head, (heads,): a read-only float64 copy, or the tensor.

    Unless heads is None, one number may stand for all heads.
    """
    array = _parameter(name, value)
    if array.ndim == 0 and heads is not None:
        array = array.expand(heads) if _arrays.is_tensor(array) else np.repeat(array, heads)
    if array.ndim != 1 or array.shape[0] == 0:
        raise ValueError(f"{name} must have shape (heads,), got {tuple(array.shape)}")
    if heads is not None and array.shape[0] != heads:
        raise ValueError(f"{name} must have {heads} heads, got {array.shape[0]}")
    if has_numbers(array):
        _within(name, _arrays.to_numpy(array), above, at_most)
    return array


def numbers(name: str, value: Any, axes: tuple[str, ...], *, least: int = 0) -> Any:
    """Return an array of numbers with these axes, each at least `least` long.

    Arrays become a read-only float64 copy; tensors are returned unchanged.
    """
    array = _parameter(name, value)
    if array.ndim != len(axes) or min(array.shape) < least:
        raise ValueError(f"{name} must have shape ({', '.join(axes)}), got {tuple(array.shape)}")
    return array


def has_numbers(value: Any) -> bool:
    """Return whether an array or a tensor holds numbers that can be read."""
    return not (_torch_state.is_tracing() or getattr(value, "is_meta", False))


#: NumPy's kinds of complex numbers, strings, dates and time spans.
NO_NUMBERS = "cSUmM"


def _parameter(name: str, value: Any) -> Any:
    _checks.plain(name, value)
    if _arrays.is_tensor(value):
        if _arrays.dtype_name(value.dtype) not in (*_arrays.CORE_DTYPES, "float64"):
            raise TypeError(f"{name} must be floating, got dtype {value.dtype}")
        return value
    try:
        if np.asarray(value).dtype.kind in NO_NUMBERS:
            raise TypeError
        array = np.array(value, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold real numbers, got {value!r}") from None
    array.flags.writeable = False
    return array


def _within(name: str, array: NDArray[Any], above: float, at_most: float) -> None:
    wrong = array[~(np.isfinite(array) & (array > above) & (array <= at_most))]
    if wrong.size:
        limits = [f"> {above:g}"] * (above > -math.inf) + [f"<= {at_most:g}"] * (at_most < math.inf)
        expected = f"finite and {' and '.join(limits)}" if limits else "finite"
        raise ValueError(f"{name} must be {expected}, got {wrong[0]}")


def without_nan(name: str, array: Any) -> None:
    """Check that numbers contain no NaN and no +infinity."""
    if has_numbers(array):
        numbers = _arrays.to_numpy(array)
        wrong = numbers[np.isnan(numbers) | np.isposinf(numbers)]
        if wrong.size:
            raise ValueError(f"{name} must not hold NaN or infinity, got {wrong[0]}")


def log_gates(value: Any) -> Any:
    """Return logarithms of forget gates (batch, heads, keys); padding may hold any number <= 0."""
    array = numbers("log_gates", value, ("batch", "heads", "keys"))
    if array.shape[1] == 0:
        raise ValueError(f"log_gates must have shape (batch, heads, keys), got {array.shape}")
    if has_numbers(array):
        gates = _arrays.to_numpy(array)
        if (gates > 0.0).any():
            raise ValueError(
                f"log_gates must be <= 0, logarithms of gates up to 1, got {gates[gates > 0.0][0]}"
            )
    return array


def gate_shape(shape: tuple[int, ...], problem: tuple[int, ...]) -> None:
    """Check that log gates (batch, heads, keys) fit a problem."""
    batch, heads, _, keys = problem
    if shape not in ((1, heads, keys), (batch, heads, keys)):
        raise ValueError(
            f"log_gates must have shape ({batch}, {heads}, {keys}), for query and key, got {shape}"
        )


def prefix_sums(shape: tuple[int, ...], problem: tuple[int, ...], *, placed: bool) -> None:
    """Check that prefix sums (1 or batch, heads, keys) fit a problem with queries at the end."""
    batch, heads, queries, keys = problem
    if queries > keys:
        raise ValueError(
            f"query must be at most as long as key ({keys}) with forget gates, got {queries}"
        )
    if placed:
        raise ValueError(
            "query_positions must be None and align 'end' with forget gates, whose queries are "
            "the last keys"
        )
    if shape not in ((1, heads, keys), (batch, heads, keys)):
        raise ValueError(f"sums must have shape ({batch}, {heads}, {keys}), got {shape}")


def head_count(bias: Any) -> int:
    """Return the number of heads of a bias object, which may know no `heads`."""
    return int(getattr(bias, "head_count", None) or bias.num_heads)


def heads_of_query(bias: Any, heads: int) -> None:
    """Check that a bias object has query's number of heads."""
    if head_count(bias) != heads:
        raise ValueError(f"bias must have query's {heads} heads, got {bias!r}")


def fitting_bias(bias: Any, heads: int, *, causal: bool) -> None:
    """Check that a bias object has query's number of heads and fits causal or other attention."""
    heads_of_query(bias, heads)
    if bias.sides == "causal" and not causal:
        raise ValueError(f"causal must be True for a bias of causal sides, got {bias!r}")


def slice_of_heads(value: Any, num_heads: int) -> slice:
    """Return a slice of heads with its start and stop."""
    if not isinstance(value, slice):
        raise TypeError(f"heads must be a slice such as slice(0, 4), got {value!r}")
    begin, end, step = value.indices(num_heads)
    beyond = value.stop is not None and value.stop > num_heads
    if step != 1 or begin >= end or beyond:
        raise ValueError(
            f"heads must be a slice of some of {num_heads} heads in a row, got {value!r}"
        )
    return slice(begin, end)


def dense_numbers(name: str, value: Any) -> None:
    """Check that a bias is a floating array or tensor."""
    if not _arrays.is_array(value):
        is_scaling = hasattr(value, "scale_exponents") and not isinstance(value, type)
        advice = f": pass ALiBi(num_heads, {value!r})" if is_scaling else ""
        raise TypeError(
            f"{name} must be None, a bias object, an array or a tensor, got {value!r}{advice}"
        )
    _checks.plain(name, value)
    if _arrays.dtype_name(value.dtype) not in (*_arrays.CORE_DTYPES, "float64"):
        raise TypeError(f"{name} must be floating, got dtype {value.dtype}")


def broadcastable(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Check that a shape broadcasts to another."""
    axes = zip(reversed(shape), reversed(wanted), strict=False)
    if len(shape) > len(wanted) or any(size not in (1, whole) for size, whole in axes):
        raise ValueError(f"{name} must be broadcastable to {wanted}, got {shape}")


def linear_or_dense(**others: Any) -> None:
    """Refuse to multiply a bias of another kind by factors of the queries."""
    if kinds := [name for name, numbers in others.items() if numbers is not None]:
        raise ValueError(
            "bias must be linear or dense where log_n is biased, got one in the form of "
            f"{kinds[0]}: pass bias.tensor(query_length, key_length)"
        )


def result_dtype(dtype: Any, out: Any) -> str:
    """Return the name of a dense bias's dtype: the argument's, out's, or float32."""
    if dtype is None:
        dtype = np.float32 if out is None else getattr(out, "dtype", np.float32)
    return _checks.floating_dtype(dtype, _arrays.CORE_DTYPES, None if out is None else "out")


#: Prefix sums of log gates are float64; up to this size their differences are exact to 2e-7.
MAX_GATE_SUM = 1e9


def finite_gates(gates: Any) -> None:
    """Check that all log gates of real keys are finite, and that their sums are exact enough."""
    if not has_numbers(gates):
        return
    numbers = _arrays.to_numpy(gates)
    if not np.isfinite(numbers).all():
        raise ValueError("log_gates must be finite where keys are real, got NaN or -infinity")
    with np.errstate(over="ignore"):
        least = numbers.sum(axis=-1).min(initial=0.0)
    if least < -MAX_GATE_SUM:
        raise ValueError(
            f"log_gates must sum to at least {-MAX_GATE_SUM:g} for each head, so that float64 "
            f"holds their differences, got {least:g}"
        )


def distance_table(table: Any, begin: Any) -> tuple[Any, int]:
    """Return a table (heads, distances) and its first distance."""
    array = numbers("table", table, ("heads", "distances"), least=1)
    without_nan("table", array)
    return array, _checks.integer("begin", begin, minimum=-_checks.MAX_LENGTH)


def covered(begin: int, size: int, seen: tuple[int, int]) -> None:
    """Check that a table covers all distances that are seen."""
    if seen[0] <= seen[1] and not begin <= seen[0] <= seen[1] < begin + size:
        raise ValueError(
            f"table must cover the distances {seen[0]} to {seen[1]} that are seen, got {size} from "
            f"{begin} on"
        )


#: The number of distances that a table may span: 2 GiB for 8 heads.
MAX_SPAN = 2**26


def span(seen: tuple[int, int]) -> None:
    """Check that a table over the distances that are seen fits into memory."""
    if seen[1] - seen[0] >= MAX_SPAN:
        raise ValueError(
            f"positions must be less than {MAX_SPAN} apart for a bias that is a table, got "
            f"distances {seen[0]} to {seen[1]}"
        )


def function_result(values: Any, heads: int, count: int) -> None:
    """Check the values that a function of distance returned for `count` distances."""
    if not hasattr(values, "shape") or tuple(values.shape) not in ((count,), (heads, count)):
        got = tuple(values.shape) if hasattr(values, "shape") else repr(values)
        raise ValueError(
            f"function must return ({heads}, {count}) or ({count},) for {count} distances, got "
            f"{got}"
        )
    without_nan("function's values", values)


def buckets(count: int, max_distance: Any, *, bidirectional: bool) -> int:
    """Check the number of T5's buckets, and return the checked max_distance."""
    exact = count // 2 // (2 if bidirectional else 1)
    if exact < 1:
        raise ValueError(
            f"values must have at least {4 if bidirectional else 2} buckets, got {count}"
        )
    return _checks.integer("max_distance", max_distance, minimum=exact + 1)


def function(value: Any) -> None:
    """Check that a function of distance is callable."""
    if not callable(value):
        raise TypeError(f"function must be callable, got {value!r}")


def heads_of(name: str, got: int, heads: int) -> None:
    """Check that an array has as many heads as a bias."""
    if got != heads:
        raise ValueError(f"{name} must have the bias's {heads} heads, got {got}")


def nonzero_scale(value: Any, head_dim: int) -> float:
    """Return the factor of dot products, which must not be 0."""
    number = _checks.scale(value, head_dim)
    if number == 0.0:
        raise ValueError(f"scale must not be 0, got {value!r}")
    return number


def bias_object(bias: Any) -> None:
    """Check that a bias is an object with num_heads and tensor, such as ALiBi."""
    if not hasattr(bias, "num_heads") or not callable(getattr(bias, "tensor", None)):
        raise TypeError(
            "bias must be an object with num_heads and tensor(query_length, key_length) such as "
            f"ALiBi(8), got {bias!r}"
        )


def slopes(name: str, value: Any, heads: int) -> None:
    """Check slopes (heads,), (batch, heads) or (batch, heads, queries): floating, not NaN."""
    _checks.plain(name, value)
    array = value if _arrays.is_tensor(value) else np.asarray(value)
    if _arrays.dtype_name(array.dtype) not in (*_arrays.CORE_DTYPES, "float64"):
        raise TypeError(f"{name} must be floating, got dtype {array.dtype}")
    if array.ndim not in (1, 2, 3):
        raise ValueError(
            f"{name} must have shape (heads,), (batch, heads) or (batch, heads, queries), "
            f"got {tuple(array.shape)}"
        )
    got = array.shape[0] if array.ndim == 1 else array.shape[1]
    if got != heads:
        raise ValueError(f"{name} must have {heads} heads, got {got} (shape {tuple(array.shape)})")
    if has_numbers(value):
        numbers = _arrays.to_numpy(value)
        if np.isnan(numbers).any():
            raise ValueError(f"{name} must not hold NaN")
        if np.isneginf(numbers).any():
            raise ValueError(f"{name} must not hold -infinity; +infinity hides a side")


def slopes_for_sides(value: Any, sides: str, heads: int, *, scaled: bool) -> None:
    """Check ALiBi's argument slopes against its other arguments."""
    if sides == "two_slopes" and not (isinstance(value, tuple) and len(value) == 2):
        raise ValueError(
            f"slopes must be a pair (left, right) for sides='two_slopes', got {value!r}"
        )
    if value is None:
        return
    if scaled:
        raise ValueError(
            "scaling must be None when slopes are given: a scaling stretches standard slopes only"
        )
    if sides != "two_slopes":
        if isinstance(value, tuple):
            raise ValueError(
                f"slopes must be one array or list for sides={sides!r}, got a tuple: a pair "
                "(left, right) needs sides='two_slopes'"
            )
        slopes("slopes", value, heads)
        return
    for side, side_slopes in zip(("left", "right"), value, strict=True):
        slopes(f"slopes ({side})", side_slopes, heads)


def slope_shapes(left: tuple[int, ...], right: tuple[int, ...], query_length: int) -> None:
    """Check that left and right slopes (1 or batch, heads, 1 or queries) fit together."""
    if left[0] != right[0] and 1 not in (left[0], right[0]):
        raise ValueError(
            f"slopes must have one batch size, got {left[0]} on the left and {right[0]} on the "
            "right"
        )
    for shape in (left, right):
        if shape[2] not in (1, query_length):
            raise ValueError(f"slopes must be given for {query_length} queries, got {shape[2]}")


def kernel_slopes(left: Any, right: Any, shape: tuple[int, ...]) -> None:
    """Check that slopes (1 or batch, heads, 1 or queries) fit (batch, heads, queries, keys)."""
    slope_shapes(tuple(left.shape), tuple(right.shape), shape[2])
    for side in (left, right):
        heads_of("slopes", int(side.shape[1]), shape[1])
        slope_batch(int(side.shape[0]), shape[0])


def slope_batch(rows: int, batch: int) -> None:
    """Check that slopes are for one row or for all rows of the batch."""
    if rows not in (1, batch):
        raise ValueError(f"slopes must be for 1 row or the batch of {batch}, got {rows}")


def row_lengths(value: Any, key_length: int) -> NDArray[np.int64]:
    """Return numbers of real tokens, (batch,), at most key_length; one full row if None."""
    checked = lengths([key_length] if value is None else value)
    if checked.max(initial=0) > key_length:
        raise ValueError(f"lengths must be at most key_length {key_length}, got {checked.max()}")
    return checked
