"""Checks of arguments that several modules share: scalars, choices, dtypes, shapes of attention.

A check that only one function needs is written there. A wrong type is a TypeError, a wrong value a
ValueError. Each message names the argument, the expected value and the actual one. Public functions
check their arguments once, before any work.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _names, _torch_state
from ntk_alibi._arrays import DTypeLike
from ntk_alibi._backends import Backend

#: Lengths and positions are 32-bit in the kernels.
MAX_LENGTH = 2**31 - 1

#: Far more heads than any model has. Slopes of 2^31 heads would fill the memory.
MAX_HEADS = 2**20

#: The smallest and the largest normal float32 value.
FLOAT32_MIN, FLOAT32_MAX = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


def integer(name: str, value: Any, *, minimum: int, maximum: int = MAX_LENGTH) -> int:
    """Return an argument as an int in [minimum, maximum]."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer, got {briefly(value)}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {briefly(value)}") from None
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} must be between {minimum} and {maximum}, got {briefly(value)}")
    return number


def finite(name: str, value: Any, *, minimum: float = -math.inf, inclusive: bool = True) -> float:
    """Return an argument as a finite float >= minimum (> minimum unless inclusive)."""
    wrong_kind = isinstance(value, bool | np.bool_ | str | np.ma.MaskedArray)
    if wrong_kind or (_arrays.is_tensor(value) and value.requires_grad):
        raise TypeError(f"{name} must be a number, got {briefly(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor with several entries
        raise TypeError(f"{name} must be a number, got {briefly(value)}") from None
    enough = minimum <= number if inclusive else minimum < number
    if not (enough and -math.inf < number < math.inf):  # torch.compile's symbols compare
        limit = "" if minimum == -math.inf else f" {'>=' if inclusive else '>'} {minimum:g}"
        raise ValueError(f"{name} must be a finite number{limit}, got {briefly(value)}")
    return number


def scale(value: Any, head_dim: int) -> float:
    """Return the factor of dot products, by default 1 / sqrt(head_dim)."""
    number = finite("scale", 1.0 / math.sqrt(head_dim) if value is None else value)
    if number != 0.0 and not FLOAT32_MIN <= abs(number) <= FLOAT32_MAX:
        raise ValueError(
            f"scale must be 0 or within float32's range ({FLOAT32_MIN:g} to {FLOAT32_MAX:g}), "
            f"got {briefly(value)}"
        )
    return number


def as_float32(name: str, values: Any) -> NDArray[np.float32]:
    """Return values as float32; refuse finite ones beyond its range."""
    wide = np.asarray(values)
    if wide.dtype == np.float32:
        return wide
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    beyond = np.isinf(narrow) & np.isfinite(wide)
    if beyond.any():
        raise ValueError(
            f"{name} must be within float32's range ({FLOAT32_MAX:g}), got {wide[beyond].flat[0]:g}"
        )
    return narrow


def share(name: str, value: Any, *, all_allowed: bool = False) -> float:
    """Return an argument as a float > 0 and < 1, or <= 1 if all_allowed."""
    number = finite(name, value, minimum=0.0, inclusive=False)
    if number > 1.0 or (number == 1.0 and not all_allowed):
        expected = "above 0 and at most 1" if all_allowed else "between 0 and 1"
        raise ValueError(f"{name} must be {expected}, got {briefly(value)}")
    return number


def boolean(name: str, value: Any) -> bool:
    """Return an argument that must be True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {briefly(value)}")
    return bool(value)


def multiple(name: str, value: int, of: str, divisor: int) -> None:
    """Check that value is a multiple of divisor, the value of the argument `of`."""
    if value % divisor:
        raise ValueError(f"{name} must be a multiple of {of} = {divisor}, got {value}")


def at_most_one(**given: Any) -> None:
    """Check that at most one of these arguments is not None."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        other = given[names[1]]
        raise ValueError(f"{names[1]} must be None when {names[0]} is given, got {briefly(other)}")


def choice(name: str, value: Any, choices: Collection[str], advice: str = "") -> str:
    """Return an argument that must be one of choices; advice ends the error message."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {briefly(value)}{advice}"
        )
    return value


def check_equal(name: str, value: Any, expected: Any, where: str) -> None:
    """Check that an argument has the only value that is allowed `where`, such as "with group"."""
    if value != expected:
        raise ValueError(f"{name} must be {expected!r} {where}, got {briefly(value)}")


def missing(name: str, when: str) -> NoReturn:
    """Raise the error for an argument that must be given."""
    raise ValueError(f"{name} must be given {when}")


def keys(
    name: str, mapping: Any, *, required: Collection[str], optional: Collection[str] = ()
) -> None:
    """Check that an argument is a mapping with all required keys and no unknown ones."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{name} must be a mapping, got {briefly(mapping)}")
    missing = [key for key in required if key not in mapping]
    unknown = [key for key in mapping if key not in {*required, *optional}]
    if missing or unknown:
        expected = ", ".join([*required, *(f"{key} (optional)" for key in optional)])
        wrong = [f"{key!r} is missing" for key in missing] + [
            f"{briefly(key)} is unknown{_names.did_you_mean(str(key), ())}" for key in unknown
        ]
        raise ValueError(f"{name} must have the keys {expected}; {'; '.join(wrong)}")


def num_heads(value: Any) -> int:
    """Return the number of attention heads."""
    return integer("num_heads", value, minimum=1, maximum=MAX_HEADS)


def heads(value: Any, count: int) -> list[int]:
    """Convert heads, which count from 1, to indices from 0; None means all heads."""
    if value is None:
        return list(range(count))
    if not isinstance(value, Collection) or isinstance(value, str) or not len(value):
        raise TypeError(f"heads must be None or heads counted from 1, got {briefly(value)}")
    return [integer("heads", head, minimum=1, maximum=count) - 1 for head in value]


#: The largest array from which the command line computes a picture or a table: 2 GiB in float32.
MAX_ENTRIES = 2**29

#: The largest head dimension. The kernels' bounds of rounding errors hold up to it.
MAX_HEAD_DIM = 256


def head_dim(value: Any) -> int:
    """Return the number of channels of a head."""
    return integer("head_dim", value, minimum=1, maximum=MAX_HEAD_DIM)


def array(name: str, value: Any) -> None:
    """Check that an argument is an array or a tensor."""
    if not _arrays.is_array(value):
        raise TypeError(
            f"{name} must be a NumPy array or a torch tensor, got {type(value).__name__}"
        )


def attention_input(name: str, value: Any) -> None:
    """Check that an argument is an array or a dense tensor (batch, heads, length, head_dim)."""
    check_plain(name, value)
    array(name, value)
    _check_four_axes(name, value.shape)


def attention_inputs(query: Any, key: Any, value: Any) -> None:
    """Check that query, key and value are arrays of one framework, dtype and device.

    `check_shapes` and `floating_dtype` check the rest.
    """
    for name, given in (("query", query), ("key", key), ("value", value)):
        attention_input(name, given)
        tensor = not isinstance(query, np.ndarray)
        if isinstance(given, np.ndarray) is tensor or given.dtype != query.dtype:
            kind = "tensor" if tensor else "NumPy array"
            raise TypeError(
                f"{name} must be a {kind} of {query.dtype} as query, got {type(given).__name__} of "
                f"{given.dtype}"
            )
        if tensor and given.device != query.device:
            raise ValueError(f"{name} must be on query's device {query.device}, got {given.device}")


#: The end of an error about heads whose counts suit the other order of axes.
SWAPPED = ": they look like (batch, length, heads, head_dim), pass query.swapaxes(1, 2) and so on"


def check_shapes(
    query_shape: tuple[int, ...], key_shape: tuple[int, ...], value_shape: tuple[int, ...]
) -> None:
    """Check that query, key and value have four axes each and shapes that go together."""
    for name, shape in (("query", query_shape), ("key", key_shape), ("value", value_shape)):
        _check_four_axes(name, shape)
    (batch, heads, _, head_dim), key_shape = query_shape, tuple(key_shape)
    if tuple(value_shape) != key_shape:
        raise ValueError(f"value must have key's shape {key_shape}, got {tuple(value_shape)}")
    if (key_shape[0], key_shape[3]) != (batch, head_dim):
        raise ValueError(
            f"key must have batch {batch} and head_dim {head_dim} as query, got {key_shape}"
        )
    if heads != 0 and (key_shape[1] == 0 or heads % key_shape[1]):
        end = SWAPPED if query_shape[2] == key_shape[2] < key_shape[1] else ""
        expected = f"query must have a multiple of key's {key_shape[1]} heads"
        raise ValueError(f"{expected}, got {heads}{end}")
    integer("head_dim", head_dim, minimum=1, maximum=MAX_HEAD_DIM)


def _check_four_axes(name: str, shape: tuple[int, ...]) -> None:
    """Check that queries, keys or values have the axes of attention."""
    if len(shape) != 4:
        raise ValueError(
            f"{name} must have shape (batch, heads, length, head_dim), got {tuple(shape)}"
        )


def floating_dtype(value: DTypeLike, allowed: Collection[str], of: str | None = None) -> str:
    """Check that a floating dtype is allowed and return its name; `of` names its array."""
    argument = "dtype" if of is None else f"{of}'s dtype"
    try:
        # NumPy takes an array for its dtype.
        name = "None" if value is None or _arrays.is_array(value) else _arrays.dtype_name(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{argument} must be a NumPy or torch dtype, got {briefly(value)}"
        ) from None
    if name not in allowed:
        got = briefly(value) if _arrays.is_array(value) else name
        raise TypeError(f"{argument} must be one of {', '.join(allowed)}, got {got}")
    if not getattr(value, "isnative", True):
        raise TypeError(
            f"{argument} must be in native byte order, got {value}: pass "
            f"{of or 'array'}.astype({name!r})"
        )
    return name


def check_plain(name: str, value: Any) -> None:
    """Refuse arrays and tensors whose memory does not hold their values.

    These are masked arrays of NumPy and torch, nested tensors, other tensors whose class overrides
    torch's operations, such as DTensors, and what stands for a tensor in torch.fx.
    """
    if isinstance(value, np.ma.MaskedArray):
        _refuse_masked(name, f"{name}.filled(...)")
    if _torch_state.is_proxy(value):
        _torch_state.refuse_tracer(name)
    if not _arrays.is_tensor(value):
        return
    torch = sys.modules["torch"]
    if value.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor, got a nested one: pad its rows, as "
            f"{name}.to_padded_tensor(0) does, and pass key_padding_mask, or put them one after "
            "another into one row, and pass segment_ids"
        )
    if hasattr(value, "get_mask"):  # a MaskedTensor
        _refuse_masked(name, f"{name}.get_data()")
    wraps = type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if wraps and not _torch_state.is_tracing():  # which reads no memory
        raise TypeError(
            f"{name} must be a plain tensor, got a {type(value).__name__}: of a DTensor pass "
            f"{name}.full_tensor(), and use a FakeTensor inside of its FakeTensorMode"
        )
    if value.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, see {name}.to_dense(), got {value.layout}")


def _refuse_masked(name: str, unmasked: str) -> NoReturn:
    raise TypeError(
        f"{name} must not be masked, since its mask would be lost: pass {unmasked}, and what it "
        "hides as key_padding_mask or mask"
    )


def check_no_block_mask(name: str, mask: Any) -> None:
    """Refuse a mask of pairs of torch's FlexAttention, which knows of all of them a function."""
    if hasattr(mask, "mask_mod"):
        raise TypeError(
            f"{name} must hold a boolean for each pair, got torch's BlockMask: pass "
            f"create_mask({name}.mask_mod, B, H, Q_LEN, KV_LEN, device), which is beside it in "
            "torch.nn.attention.flex_attention"
        )


def check_no_context_parallel() -> None:
    """Refuse attention inside torch's `context_parallel`, where each process has part of the keys.

    Torch has no public way to ask for it, but it replaces torch's attention by another function.
    """
    package, torch = "torch.distributed.tensor.experimental", sys.modules.get("torch")
    if torch is None or package not in sys.modules:
        return
    attend = torch.nn.functional.scaled_dot_product_attention
    torchs_own = attend is torch._C._nn.scaled_dot_product_attention
    if not torchs_own and str(attend.__module__).startswith(package):
        raise ValueError(
            "attention must be called outside of torch's context_parallel, which leaves each "
            "process a part of the sequence: ntk_alibi sees no keys and positions of other parts"
        )


def out(value: Any, shape: tuple[int, ...], dtype: str, backend: Backend) -> None:
    """Check the framework, shape, dtype and memory of a caller's buffer."""
    check_plain("out", value)
    if not backend.holds(value):
        raise TypeError(f"out must be a {backend.kind}, got {type(value).__name__}")
    if tuple(value.shape) != shape or _arrays.dtype_name(value.dtype) != dtype:
        raise ValueError(
            f"out must have shape {shape} and dtype {dtype}, "
            f"got {tuple(value.shape)} and {_arrays.dtype_name(value.dtype)}"
        )
    if not getattr(value.dtype, "isnative", True):
        raise TypeError(f"out must be in native byte order, got {value.dtype}")
    if not backend.can_write(value):
        raise ValueError(
            "out must be contiguous, aligned, writable, in main memory, and not require grad or be "
            "a negated view"
        )


def constant(name: str, value: Any) -> NDArray[Any]:
    """Convert an argument to NumPy; refuse a tensor that torch records, transforms or traces."""
    check_plain(name, value)
    check_has_values(name, value)
    if _arrays.is_tensor(value) and not _torch_state.has_values(value):
        raise ValueError(
            f"{name} must not be a tensor where torch traces or maps: its values are read once, "
            "and would be wrong at later calls"
        )
    if _torch_state.is_differentiated(value):
        raise ValueError(
            f"{name} must not require grad here, or carry a tangent, since the result is a "
            f"constant: pass {name}.detach()"
        )
    return _arrays.to_numpy(value)


def check_has_values(name: str, value: Any) -> None:
    """Refuse a tensor on the device "meta", which has no values."""
    if getattr(value, "is_meta", False):
        raise TypeError(f"{name} must be a tensor with values, got {briefly(value)}")


def tokenizer(value: Any) -> None:
    """Check that a tokenizer can be called and has a method `decode`."""
    if isinstance(value, type) or not (
        callable(value) and callable(getattr(value, "decode", None))
    ):
        raise TypeError(f"tokenizer must be the model's tokenizer, got {briefly(value)}")


#: The longest repr that a message contains.
LONGEST_REPR = 120


def briefly(value: Any) -> str:
    """Describe a wrong argument by its repr, or by its type and shape if that is no short line."""
    kind = type(value).__name__
    try:
        shape = getattr(value, "shape", ())
        if _arrays.is_array(value) and shape:
            return f"a {kind} of shape {tuple(shape)}"
        text = repr(value)
    except Exception:  # a nested tensor has no shape, and a huge integer no digits
        return f"a {kind}"
    return text if len(text) <= LONGEST_REPR and text.isprintable() else f"a {kind}"
