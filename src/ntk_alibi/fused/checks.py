"""Checks of the arguments of `attention` and of its gradients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from ntk_alibi import _arrays, _checks

#: Arguments of torch's scaled_dot_product_attention, and what to do in place of them.
OF_TORCH = {
    "attn_mask": "pass numbers to add as bias, and padding as key_padding_mask",
    "dropout_p": "leave it out, since the fused kernel has no dropout",
    "enable_gqa": "leave it out, since key and value may always have fewer heads",
    "is_causal": "pass causal, which is True by default",
}


def other_arguments(names: Collection[str]) -> NoReturn:
    """Refuse arguments that `attention` does not have, and say what to do in place of torch's."""
    name = min(names, key=lambda name: name not in OF_TORCH)
    instead = f": {OF_TORCH[name]}" if name in OF_TORCH else ""
    raise TypeError(f"attention() got an unexpected keyword argument {name!r}{instead}")


def is_quantized(value: Any) -> bool:
    """Return whether keys or values are quantized."""
    return hasattr(value, "scales")


def quantized_rows(numbers: Any, scales: Any) -> None:
    """Check the numbers and the scales of quantized rows."""
    _checks.attention_input("numbers", numbers)
    if not _arrays.is_array(scales) or _arrays.is_tensor(scales) != _arrays.is_tensor(numbers):
        raise TypeError(f"scales must be of numbers' framework, got {type(scales).__name__}")
    _checks.plain("scales", scales)
    for name, array, dtype in (("numbers", numbers, "int8"), ("scales", scales, "float32")):
        if _arrays.dtype_name(array.dtype) != dtype or not getattr(array.dtype, "isnative", True):
            raise TypeError(f"{name} must be of native {dtype}, got {array.dtype}")
    shape = tuple(numbers.shape[:3])
    if tuple(scales.shape) != shape:
        raise ValueError(f"scales must have shape {shape}, got {tuple(scales.shape)}")
    if _arrays.is_tensor(numbers) and numbers.device != scales.device:
        raise ValueError(f"scales must be on numbers' {numbers.device}, got {scales.device}")


def floating_rows(x: Any) -> None:
    """Check rows that are to be quantized."""
    _checks.attention_input("x", x)
    _checks.floating_dtype(x.dtype, _arrays.CORE_DTYPES, "x")
    _checks.head_dim(x.shape[3])


def index_of_rows(index: Any) -> None:
    """Refuse an index that selects channels, or that may mean another axis of the scales."""
    axes = index if isinstance(index, tuple) else (index,)
    if len(axes) > 3 or any(axis is None or axis is Ellipsis for axis in axes):
        raise IndexError(f"an index of QuantizedRows must be of batch, heads, tokens, got {index}")


def not_an_array(value: Any) -> NoReturn:
    """Refuse array functions on quantized rows."""
    raise TypeError(
        f"the argument must be an array or a tensor, got {value!r}: pass its dequantized(), or use "
        "ntk_alibi.attention"
    )


def inputs(query: Any, key: Any, value: Any) -> None:
    """Check query, key and value: three arrays alike, or an array and two quantized ones."""
    if not is_quantized(key) and not is_quantized(value):
        return _checks.attention_inputs(query, key, value)
    _checks.attention_input("query", query)
    for name, rows in (("key", key), ("value", value)):
        if not is_quantized(rows):
            raise TypeError(
                "key and value must both be QuantizedRows or both be arrays, got a "
                f"{name} of type {type(rows).__name__}"
            )
        if _arrays.is_tensor(rows.numbers) != _arrays.is_tensor(query):
            raise TypeError(f"{name} must be of query's framework, got {type(rows.numbers)}")
        if _arrays.is_tensor(query) and rows.numbers.device != query.device:
            raise ValueError(f"{name} must be on query's {query.device}, got {rows.numbers.device}")
    return None


def input_dtype(dtype: Any, dtypes: tuple[str, ...]) -> None:
    """Check the dtype of query, key and value."""
    if "float64" not in dtypes and _arrays.dtype_name(dtype) == "float64":
        raise TypeError(
            f"query must be of a dtype of {', '.join(dtypes)}, got float64: pass "
            "query.astype(numpy.float32), or see ntk_alibi.reference.attention"
        )
    _checks.floating_dtype(dtype, dtypes, "query")


def rotary(value: Any, head_dim: int, *, causal: bool) -> Any:
    """Return the checked rotary embedding, or None."""
    if value is None:
        return None
    if isinstance(value, type) or not callable(getattr(value, "rotated", None)):
        raise TypeError(f"rotary must be None, a RoPE or an XPOS, got {value!r}")
    if value.head_dim != head_dim:
        raise ValueError(f"rotary must have query's head_dim {head_dim}, got {value!r}")
    if value.fades and not causal:
        raise ValueError(f"causal must be True with XPOS, which grows ahead, got {value!r}")
    return value


def untraced_positions(rotary: Any) -> NoReturn:
    """Refuse positions that torch traces with XPOS, whose centres depend on their values."""
    raise ValueError(
        "query_positions and key_positions must be None with XPOS where torch traces attention, "
        f"got them with {rotary!r}"
    )


def no_dropout(value: Any) -> None:
    """Refuse dropout of attention weights, whose matrix is never formed."""
    if _checks.finite("dropout", value, minimum=0.0):
        raise ValueError(
            f"dropout must be 0 in fused attention, got {value!r}: use ntk_alibi.patch(model, "
            'attention="eager"), or bias.tensor(...) as attn_mask of torch\'s '
            "scaled_dot_product_attention(dropout_p=...)"
        )


def without_torch(name: str, used: bool) -> None:
    """Refuse an option that calls through torch's operator do not have."""
    if used:
        raise ValueError(
            f"{name} is for calls that torch neither records nor traces: use torch.no_grad() and "
            "float32, bfloat16 or float16 on the CPU"
        )


def forward_results(
    query: Any, output: Any, logsumexp: Any, output_gradient: Any, logsumexp_gradient: Any
) -> None:
    """Check shapes and dtypes of attention's results and of their gradients."""
    for name, array, like in (
        ("output", output, query),
        ("output_gradient", output_gradient, query),
        ("logsumexp", logsumexp, None),
        ("logsumexp_gradient", logsumexp_gradient, None),
    ):
        if array is None and name == "logsumexp_gradient":
            continue
        if not _arrays.is_array(array):
            raise TypeError(
                f"{name} must be a NumPy array or a torch tensor, got {type(array).__name__}"
            )
        if like is None:
            _checks.floating_dtype(array.dtype, _arrays.ANY_DTYPES, name)
        shape = tuple(query.shape) if like is not None else tuple(query.shape[:3])
        if tuple(array.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(array.shape)}")
        if like is not None and array.dtype != query.dtype:
            raise TypeError(f"{name} must be of query's dtype {query.dtype}, got {array.dtype}")


def exact_logsumexp(known: Any, greatest: float) -> None:
    """Refuse rounded logsumexps that are not those of the call, where rounding is too much."""
    if not known.all():
        raise ValueError(
            f"logsumexp must be float64, or that of the same call, beyond {greatest:g}: float32 "
            f"rounds it by too much there, got other numbers in {int((~known).sum())} places"
        )


def key_cache(key: Any, known: tuple[int, ...], length: int) -> None:
    """Check a key cache that continues `length` keys of (batch, key heads, head_dim)."""
    if not is_quantized(key):
        _checks.attention_input("key", key)
        _checks.floating_dtype(key.dtype, _arrays.CORE_DTYPES, "key")
    if length and tuple(key.shape[:2]) != known[:2]:
        raise ValueError(f"key must have (batch, heads) {known[:2]} as before, got {key.shape[:2]}")
    if length and key.shape[3] != known[2]:
        raise ValueError(f"key must have head_dim {known[2]} as before, got {key.shape[3]}")
    if key.shape[2] < length:
        raise ValueError(f"key must have at least {length} keys as before, got {key.shape[2]}")
    _checks.head_dim(key.shape[3])


def key_norms(value: Any, key_shape: tuple[int, ...], *, consecutive: bool) -> None:
    """Check that key norms are those of consecutive keys with this shape."""
    if not hasattr(value, "norms"):
        raise TypeError(f"key_norms must be None or a KeyNorms, got {value!r}")
    if not consecutive:
        raise ValueError("key_norms must be None with key_padding_mask or key_positions")
    got = (*value.norms.shape[:2], value.length)
    if got != tuple(key_shape[:3]):
        raise ValueError(
            f"key_norms must be of key's (batch, heads, keys) {tuple(key_shape[:3])}, got {got}"
        )
    if value.centres.shape[2] != key_shape[3]:
        raise ValueError(
            f"key_norms must be of key's head_dim {key_shape[3]}, got {value.centres.shape[2]}"
        )


def skip_tolerance(value: Any) -> float | None:
    """Return the checked tolerance, None or a share in [0, 1)."""
    if value is None:
        return None
    share = _checks.finite("skip_tolerance", value, minimum=0.0)
    if share >= 1.0:
        raise ValueError(f"skip_tolerance must be below 1, got {value!r}")
    return share


def initial(value: Any, query: Any) -> Any:
    """Return the checked output and logsumexp from which attention goes on, or None."""
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"initial must be a pair (output, logsumexp), got {value!r}")
    _checks.attention_input("query", query)
    names = "the output of initial", "the logsumexp of initial"
    for name, array, shape in zip(names, value, (query.shape, query.shape[:3]), strict=True):
        if _arrays.is_tensor(array) != _arrays.is_tensor(query) or not _arrays.is_array(array):
            raise TypeError(f"{name} must be of query's framework, got {type(array).__name__}")
        _checks.plain(name, array)
        if tuple(array.shape) != tuple(shape):
            raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(array.shape)}")
    if value[0].dtype != query.dtype:
        raise TypeError(f"{names[0]} must be of query's {query.dtype}, got {value[0].dtype}")
    _checks.floating_dtype(value[1].dtype, ("float32", "float64"), names[1])
    return value


def _list_of_arrays(name: str, arrays: Any) -> None:
    if not isinstance(arrays, Sequence) or not all(map(_arrays.is_array, arrays)):
        raise TypeError(f"{name} must be a list or a tuple of arrays, got {arrays!r}")
    for array in arrays:
        _checks.plain(name, array)


def parts(outputs: Any, logsumexps: Any) -> None:
    """Check results of attention over disjoint keys."""
    _list_of_arrays("outputs", outputs)
    _list_of_arrays("logsumexps", logsumexps)
    if len(outputs) != len(logsumexps) or not outputs:
        raise ValueError(
            "outputs and logsumexps must have the same length, at least 1, got "
            f"{len(outputs)} and {len(logsumexps)}"
        )
    for name, arrays, shape in (
        ("outputs", outputs, tuple(outputs[0].shape)),
        ("logsumexps", logsumexps, tuple(outputs[0].shape)[:-1]),
    ):
        for array in arrays:
            if tuple(array.shape) != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(array.shape)}")
            if _arrays.is_tensor(array) != _arrays.is_tensor(outputs[0]):
                raise TypeError(
                    f"{name} must all be arrays or all be tensors, got {type(array).__name__} and "
                    f"{type(outputs[0]).__name__}"
                )


def merge_buffers(out: Any, output: Any, logsumexp: Any, *, recorded: bool) -> None:
    """Check the buffers for a merge, which are like one of the outputs and its logsumexp."""
    if recorded:
        raise ValueError("out must be None where torch records gradients of the parts")
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"out must be a pair (output, logsumexp), got {out!r}")
    for buffer, part in zip(out, (output, logsumexp), strict=True):
        dtype = _arrays.dtype_name(part.dtype)
        _checks.out(buffer, tuple(part.shape), dtype, torch=_arrays.is_tensor(part))
