"""Every check of arguments, and every message, in one place.

Public functions call these once, before any work; what lies below them may trust its arguments. A
wrong type is a TypeError, a wrong value a ValueError; each message names the argument, what was
expected and what came.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, cast

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


def boolean(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def multiple(name: str, value: int, of: str, divisor: int) -> None:
    """That one number divides another."""
    if value % divisor:
        raise ValueError(f"{name} must be a multiple of {of} = {divisor}, got {value}")


def at_most_one(**given: Any) -> None:
    """That no two of some arguments are given."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        other = given[names[1]]
        raise ValueError(f"{names[1]} must be None when {names[0]} is given, got {other!r}")


def choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Value if it is one of choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return cast(str, value)


def missing(name: str, when: str) -> NoReturn:
    """That an argument has to be given."""
    raise ValueError(f"{name} must be given {when}")


def some_cases(path: Any, cases: Collection[Any]) -> None:
    """That a file holds any."""
    if not cases:
        raise ValueError(f"{path} must hold at least one case, is empty")


def unchanged_prompt(prompt: Any, text: str) -> None:
    """That a record reaches the model as it is."""
    if prompt != text:
        raise ValueError(
            "num_fewshot, system_instruction and apply_chat_template must not be given for tasks "
            f"that ask about places in a text, got a prompt of {len(prompt)} characters for a text "
            f"of {len(text)}"
        )


def method_number(name: str, kind: str, number: str, kinds: Collection[str]) -> float:
    """The number in a method's name, "ntk:4"."""
    try:
        if kind in kinds:
            return float(number)
    except ValueError:
        pass
    known = ", ".join(f"{kind}:NUMBER" for kind in kinds)
    raise ValueError(f"method must be original or one of {known}, got {name!r}")


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


def attention_mask(value: Any, name: str = "attention_mask") -> NDArray[np.uint8]:
    """A padding mask (batch, keys) of 0 and 1, any dtype."""
    if not isinstance(value, np.ndarray) and not _arrays.is_tensor(value):
        raise TypeError(f"{name} must be a NumPy array or a torch tensor, got {value!r}")
    mask = _arrays.to_numpy(value)
    if mask.ndim != 2:
        raise ValueError(f"{name} must have shape (batch, keys), got {mask.shape}")
    if mask.shape[1] > MAX_LENGTH:
        raise ValueError(f"{name} must have at most {MAX_LENGTH} keys, got {mask.shape[1]}")
    ones = mask == 1
    if not np.logical_or(ones, mask == 0).all():
        other = mask[~ones & (mask != 0)].flat[0]
        raise ValueError(f"{name} must hold only 0 and 1, got {other}")
    return np.ascontiguousarray(ones).view(np.uint8)


def key_padding_mask(value: Any, batch: int, keys: int) -> NDArray[np.uint8] | None:
    """A padding mask of this shape, or None."""
    if value is None:
        return None
    mask = attention_mask(value, "key_padding_mask")
    if mask.shape != (batch, keys):
        raise ValueError(
            f"key_padding_mask must have shape (batch, keys) = ({batch}, {keys}), got {mask.shape}"
        )
    return mask


def positions(name: str, value: Any, batch: int, length: int) -> NDArray[np.int32] | None:
    """Positions (length,) or (batch, length), integers below 2^31, as (1 or batch, length)."""
    if value is None:
        return None
    array = _arrays.to_numpy(value)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    if array.shape not in ((length,), (1, length), (batch, length)):
        raise ValueError(
            f"{name} must have shape ({length},) or ({batch}, {length}), got {array.shape}"
        )
    if array.size and not (array.min() >= 0 and array.max() <= MAX_LENGTH):
        raise ValueError(
            f"{name} must be between 0 and {MAX_LENGTH}, got {array.min()} to {array.max()}"
        )
    return np.require(np.atleast_2d(array), np.int32, ["C", "ALIGNED"])


def causal_block(value: Any, *, causal: bool) -> int | None:
    """The length of blocks of causal attention, or None."""
    if value is None:
        return None
    if not causal:
        raise ValueError(f"causal must be True with causal_block, got causal_block={value!r}")
    return integer("causal_block", value, minimum=1)


#: Head dimensions that the kernels have scratch memory for.
MAX_HEAD_DIM = 256


def _attention_input(name: str, array: Any, *, tensor: bool | None = None) -> None:
    if tensor is None:
        tensor = _arrays.is_tensor(array)
    if not tensor and not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array or a torch tensor, got {array!r}")
    if array.ndim != 4:
        raise ValueError(
            f"{name} must have shape (batch, heads, length, head_dim), got {tuple(array.shape)}"
        )
    if tensor and (array.layout != _arrays.strided() or array.is_nested):
        raise TypeError(f"{name} must be a dense tensor, see {name}.to_dense(), got {array.layout}")


def attention_shapes(query: Any, key: Any, value: Any, *, differentiable: bool = False) -> str:
    """That query, key and value fit together; the name of their dtype, also float64 for torch."""
    tensor = _arrays.is_tensor(query)
    for name, array in (("query", query), ("key", key), ("value", value)):
        _attention_input(name, array, tensor=tensor and _arrays.is_tensor(array))
        if isinstance(array, np.ndarray) == tensor or array.dtype != query.dtype:
            kind = "tensor" if tensor else "NumPy array"
            raise TypeError(
                f"{name} must be a {kind} of {query.dtype} as query, got {type(array).__name__} of "
                f"{array.dtype}"
            )
        if tensor and array.device != query.device:
            raise ValueError(f"{name} must be on query's device {query.device}, got {array.device}")
    allowed = (*_arrays.CORE_DTYPES, "float64") if differentiable else _arrays.CORE_DTYPES
    dtype = floating_dtype(query.dtype, allowed)
    (batch, heads, _, head_dim), key_shape = query.shape, tuple(key.shape)
    if tuple(value.shape) != key_shape:
        raise ValueError(f"value must have key's shape {key_shape}, got {tuple(value.shape)}")
    if (key_shape[0], key_shape[3]) != (batch, head_dim):
        raise ValueError(
            f"key must have batch {batch} and head_dim {head_dim} as query, got {key_shape}"
        )
    if heads != 0 and (key_shape[1] == 0 or heads % key_shape[1]):
        raise ValueError(f"query must have a multiple of key's {key_shape[1]} heads, got {heads}")
    integer("head_dim", head_dim, minimum=1, maximum=MAX_HEAD_DIM)
    integer("key length", key_shape[2], minimum=0)
    return dtype


def without_torch(name: str, given: bool) -> None:
    """That an option of the plain call is not given where torch records or transforms it."""
    if given:
        raise ValueError(
            f"{name} is for calls that torch neither records nor traces: use torch.no_grad() and "
            "float32, bfloat16 or float16 on the CPU"
        )


def forward_results(
    query: Any, output: Any, logsumexp: Any, output_gradient: Any, logsumexp_gradient: Any
) -> None:
    """Results of attention, and gradients of them."""
    for name, array, like in (
        ("output", output, query),
        ("output_gradient", output_gradient, query),
        ("logsumexp", logsumexp, None),
        ("logsumexp_gradient", logsumexp_gradient, None),
    ):
        if array is None and name == "logsumexp_gradient":
            continue
        shape = tuple(query.shape) if like is not None else tuple(query.shape[:3])
        if tuple(array.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(array.shape)}")
        if like is not None and array.dtype != query.dtype:
            raise TypeError(f"{name} must be of query's dtype {query.dtype}, got {array.dtype}")


def key_cache(key: Any, known: tuple[int, ...], length: int) -> str:
    """A key cache that goes on from `length` keys of (batch, key heads) = known; its dtype."""
    _attention_input("key", key)
    if length and tuple(key.shape[:2]) != known:
        raise ValueError(f"key must have (batch, heads) {known} as before, got {key.shape[:2]}")
    if key.shape[2] < length:
        raise ValueError(f"key must have at least {length} keys as before, got {key.shape[2]}")
    integer("head_dim", key.shape[3], minimum=1, maximum=MAX_HEAD_DIM)
    return floating_dtype(key.dtype, _arrays.CORE_DTYPES)


def key_norms(value: Any, key_shape: tuple[int, ...], *, consecutive: bool) -> None:
    """Kept norms of consecutive keys of this shape."""
    if not hasattr(value, "_norms"):
        raise TypeError(f"key_norms must be None or a KeyNorms, got {value!r}")
    if not consecutive:
        raise ValueError("key_norms must be None with key_padding_mask or key_positions")
    got = (*value._norms.shape[:2], value.length)
    if got != tuple(key_shape[:3]):
        raise ValueError(
            f"key_norms must be of key's (batch, heads, keys) {tuple(key_shape[:3])}, got {got}"
        )


def skip_tolerance(value: Any) -> float | None:
    """None or a share in [0, 1)."""
    if value is None:
        return None
    share = finite("skip_tolerance", value, minimum=0.0)
    if share >= 1.0:
        raise ValueError(f"skip_tolerance must be below 1, got {value!r}")
    return share


def attention_bias(bias: Any, shape: tuple[int, ...], *, causal: bool) -> None:
    """None, a bias object of as many heads, or numbers broadcastable to shape."""
    if hasattr(bias, "num_heads"):
        if bias.num_heads != shape[1]:
            raise ValueError(f"bias must have query's {shape[1]} heads, got {bias!r}")
        if bias.sides == "causal" and not causal:
            raise ValueError(f"causal must be True for a bias of causal sides, got {bias!r}")
    elif bias is not None:
        _dense_bias(bias, shape)


def _dense_bias(bias: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(bias, np.ndarray) and not _arrays.is_tensor(bias):
        raise TypeError(f"bias must be None, a bias object, an array or a tensor, got {bias!r}")
    if _arrays.dtype_name(bias.dtype) not in (*_arrays.CORE_DTYPES, "float64"):
        raise TypeError(f"bias must be floating, got dtype {bias.dtype}")
    axes = zip(reversed(bias.shape), reversed(shape), strict=False)
    if len(bias.shape) > 4 or any(own not in (1, whole) for own, whole in axes):
        raise ValueError(f"bias must be broadcastable to {shape}, got {tuple(bias.shape)}")


def parts(outputs: Any, logsumexps: Any) -> None:
    """Results of attention over disjoint keys."""
    if len(outputs) != len(logsumexps) or not outputs:
        raise ValueError(
            "outputs and logsumexps must be as many, at least one, got "
            f"{len(outputs)} and {len(logsumexps)}"
        )
    for name, arrays, shape in (
        ("outputs", outputs, tuple(outputs[0].shape)),
        ("logsumexps", logsumexps, tuple(outputs[0].shape)[:-1]),
    ):
        for array in arrays:
            if tuple(array.shape) != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(array.shape)}")


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
    """A caller's buffer: of this framework, shape and dtype, contiguous, writable, in memory."""
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
        usable = value.flags.carray  # contiguous, aligned and writable
    if not usable:
        raise ValueError(
            "out must be contiguous, aligned, writable, in main memory and not require grad"
        )


def slopes(name: str, value: Any, heads: int) -> None:
    """Slopes of shape (heads,), (batch, heads) or (batch, heads, queries), floating, not NaN."""
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
    without_numbers = _arrays.is_tracing() or getattr(value, "is_meta", False)
    if not without_numbers and np.isnan(_arrays.to_numpy(value)).any():
        raise ValueError(f"{name} must not hold NaN")


def slopes_per_head(value: Any, heads: int) -> None:
    """Slopes (heads,) of a module, for whatever comes in."""
    slopes("slopes", value, heads)
    if value.ndim != 1:
        raise ValueError(f"slopes must have shape ({heads},), got {tuple(value.shape)}")


def embedding_per_head(size: int, heads: int) -> None:
    """That each head gets no more of an embedding than the kernels have scratch memory for."""
    if size // heads > MAX_HEAD_DIM:
        most = MAX_HEAD_DIM * heads
        raise ValueError(f"embed_dim must be at most {most} for {heads} heads, got {size}")


def embeddings(q: Any, k: Any, v: Any, mask: Any, size: int) -> None:
    """Inputs (batch, length, size) of a module, and a mask (batch, keys), that fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not _arrays.is_tensor(x):
            raise TypeError(f"{name} must be a torch tensor, got {x!r}")
        if x.ndim != 3 or x.shape[2] != size:
            raise ValueError(
                f"{name} must have shape (batch, length, {size}), got {tuple(x.shape)}"
            )
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k must have q's batch {q.shape[0]}, got {k.shape[0]}")
    if v.shape != k.shape:
        raise ValueError(f"v must have k's shape {tuple(k.shape)}, got {tuple(v.shape)}")
    if mask is not None:
        _mask_of_keys(mask, tuple(k.shape[:2]))


def _mask_of_keys(mask: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(mask, np.ndarray) and not _arrays.is_tensor(mask):
        raise TypeError(f"mask must be None, a torch tensor or a NumPy array, got {mask!r}")
    if tuple(mask.shape) != shape:
        raise ValueError(f"mask must have shape (batch, keys) = {shape}, got {tuple(mask.shape)}")


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


def slope_batch(rows: int, batch: int) -> None:
    """That slopes are for one row or for as many as there are."""
    if rows not in (1, batch):
        raise ValueError(f"slopes must be for 1 row or the batch of {batch}, got {rows}")


def constant(name: str, value: Any) -> NDArray[Any]:
    """An array or a tensor of which no gradient is recorded, as NumPy."""
    if _arrays.is_tensor(value) and value.requires_grad and _arrays.is_recording():
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


def constant_scaling(scaling: Any) -> None:
    """A scaling that tracing can take for a constant."""
    known = scaling is None or getattr(scaling, "alibi_type", None) in ("linear", "ntk")
    if not known:
        raise ValueError(
            "scaling must be None, Interpolation or NTK where torch traces attention, got "
            f"{scaling!r}: pass ALiBi(num_heads, slopes=na.alibi_slopes(...))"
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
