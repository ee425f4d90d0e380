"""Every check of arguments, and every message, in one place.

Public functions call these once, before any work; what lies below them may trust its arguments. A
wrong type is a TypeError, a wrong value a ValueError; each message names the argument, what was
expected and what came.
"""

from __future__ import annotations

import functools
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


def share(name: str, value: Any) -> float:
    """Value as a float strictly between 0 and 1."""
    number = finite(name, value, minimum=0.0, inclusive=False)
    if number >= 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {value!r}")
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


def enough_documents(task: str, documents: int, processes: int) -> None:
    """That each of some processes has something to do."""
    if documents < processes:
        raise ValueError(
            f"{task} must have a document for each of the {processes} processes, got {documents}"
        )


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


def heads(value: Any, count: int) -> list[int]:
    """Numbers of heads, from 1 on, as indices; all if None."""
    if value is None:
        return list(range(count))
    if not isinstance(value, Collection) or isinstance(value, str) or not len(value):
        raise TypeError(f"heads must be None or numbers of heads, got {value!r}")
    return [integer("heads", head, minimum=1, maximum=count) - 1 for head in value]


def stats(value: Any) -> None:
    """What attention counted."""
    if not hasattr(value, "visited") or not hasattr(value, "visible"):
        raise TypeError(f"stats must come from attention(..., return_stats=True), got {value!r}")


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
    if array.dtype.kind == "f" and (broken := array[array != np.floor(array)]).size:
        raise ValueError(f"{name} must be integers, got {broken[0]}")
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


def sight(window: Any, sink: Any, block: Any) -> tuple[int | None, int, int | None]:
    """What causal queries see; sinks are something only where not everything is seen."""
    if window is not None:
        window = integer("window", window, minimum=1)
    block = causal_block(block, causal=True)
    sink = integer("sink", sink, minimum=0)
    if sink and window is None and block is None:
        raise ValueError(f"sink must be 0 without window or causal_block, got {sink}")
    return window, sink, block


def still_held(what: str, seen: int, held: int) -> None:
    """That a bounded cache has forgotten nothing yet."""
    if seen > held:
        raise ValueError(
            f"{what} must come before the first token leaves a WindowCache, got it after {seen} "
            f"tokens, of which {held} are held: use GrowingCache where tokens are taken back"
        )


def window_cache(held: tuple[int, int], seen: tuple[int | None, int], block: int | None) -> None:
    """That a bounded cache holds just what the model sees."""
    if held != seen or block is not None:
        raise ValueError(
            f"past_key_values must be a cache of what the patch shows, got WindowCache{held} with "
            f"window={seen[0]}, sink={seen[1]}, causal_block={block}"
        )


def padding_again(given: bool) -> None:
    """That padding which a bounded cache began with is given again."""
    if not given:
        raise ValueError(
            "attention_mask must be given again with a WindowCache whose rows began with padding, "
            "got None"
        )


def left_padding(others: Collection[int]) -> None:
    """That no row's real tokens have padding behind them."""
    if others:
        raise ValueError(
            "attention_mask must have padding on the left only with a WindowCache, got 0 behind 1 "
            f"in rows {others}"
        )


#: Head dimensions that the kernels have scratch memory for.
MAX_HEAD_DIM = 256


def head_dim(value: Any) -> int:
    """Channels of a head."""
    return integer("head_dim", value, minimum=1, maximum=MAX_HEAD_DIM)


def rotary_dim(value: Any, head_dim: int) -> int:
    """Channels that are rotated in pairs, all if None."""
    name = "head_dim" if value is None else "rotary_dim"
    channels = integer(name, head_dim if value is None else value, minimum=1, maximum=head_dim)
    if channels % 2:
        raise ValueError(f"{name} must be even for rotary positions, got {channels}")
    return channels


def constant_stretch(value: Any, pairs: int) -> None:
    """A scaling that rotary positions have too, for so many pairs of channels."""
    kind = getattr(value, "alibi_type", None)
    if kind not in ("linear", "ntk"):
        raise TypeError(f"scaling must be an Interpolation or an NTK, got {value!r}")
    if kind == "ntk" and pairs < 2:
        raise ValueError("scaling must be an Interpolation for one pair of channels, got an NTK")


def rotary(value: Any, head_dim: int, *, causal: bool) -> Any:
    """None or rotary positions for heads of this size."""
    if value is None:
        return None
    if isinstance(value, type) or not callable(getattr(value, "turned", None)):
        raise TypeError(f"rotary must be None, a RoPE or an XPOS, got {value!r}")
    if value.head_dim != head_dim:
        raise ValueError(f"rotary must have query's head_dim {head_dim}, got {value!r}")
    if hasattr(value, "log_decays") and not causal:
        raise ValueError(f"causal must be True with XPOS, which grows ahead, got {value!r}")
    return value


def untraced_positions(options: Any) -> None:
    """That XPOS can see the positions it is given, which decide about its centres."""
    given = options.query_positions is not None or options.key_positions is not None
    if given and hasattr(options.rotary, "log_decays"):
        raise ValueError(
            "query_positions and key_positions must be None with XPOS where torch traces "
            f"attention, got them with {options.rotary!r}"
        )


def rotary_input(x: Any, head_dim: int) -> None:
    """Vectors to rotate, (batch, heads, length, head_dim)."""
    _attention_input("x", x)
    floating_dtype(x.dtype, (*_arrays.CORE_DTYPES, "float64"))
    if x.shape[3] != head_dim:
        raise ValueError(f"x must have head_dim {head_dim}, got {tuple(x.shape)}")


def vectors_of_one_head(query: NDArray[Any], key: NDArray[Any]) -> None:
    """Queries and keys (length, head_dim), no more queries than keys."""
    for name, array in (("query", query), ("key", key)):
        if array.ndim != 2:
            raise ValueError(f"{name} must have shape (length, head_dim), got {array.shape}")
    if query.shape[1] != key.shape[1] or len(query) > len(key):
        raise ValueError(
            f"query must have key's head_dim and at most its length {key.shape}, got {query.shape}"
        )


def train_length(name: str, value: Any) -> int:
    """Tokens of training whose logarithm divides."""
    return integer(name, value, minimum=2)


def _attention_input(name: str, array: Any, *, tensor: bool | None = None) -> None:
    if tensor is None:
        tensor = _arrays.is_tensor(array)
    if not tensor and not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array or a torch tensor, got {array!r}")
    if array.ndim != 4:
        raise ValueError(
            f"{name} must have shape (batch, heads, length, head_dim), got {tuple(array.shape)}"
        )
    if tensor and (array.is_nested or array.layout is not _arrays.strided()):
        raise TypeError(f"{name} must be a dense tensor, see {name}.to_dense(), got {array.layout}")


def attention_shapes(query: Any, key: Any, value: Any, *, differentiable: bool = False) -> str:
    """That query, key and value fit together; the name of their dtype, also float64 for torch."""
    tensor = _arrays.is_tensor(query)
    dtype: Any = getattr(query, "dtype", None)
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array is query:
            _attention_input(name, array, tensor=tensor)
            continue
        _attention_input(name, array, tensor=tensor and _arrays.is_tensor(array))
        if isinstance(array, np.ndarray) == tensor or array.dtype != dtype:
            kind = "tensor" if tensor else "NumPy array"
            raise TypeError(
                f"{name} must be a {kind} of {dtype} as query, got {type(array).__name__} of "
                f"{array.dtype}"
            )
        if tensor and array.device != query.device:
            raise ValueError(f"{name} must be on query's device {query.device}, got {array.device}")
    if differentiable:  # perhaps traced, with sizes that are no plain numbers
        return _fitting_shapes(dtype, query.shape, key.shape, value.shape, differentiable=True)
    return _known_fitting_shapes(dtype, query.shape, key.shape, value.shape)


def _fitting_shapes(
    dtype: Any,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
    value_shape: tuple[int, ...],
    *,
    differentiable: bool = False,
) -> str:
    allowed = (*_arrays.CORE_DTYPES, "float64") if differentiable else _arrays.CORE_DTYPES
    core_dtype = floating_dtype(dtype, allowed)
    (batch, heads, _, head_dim), key_shape = query_shape, tuple(key_shape)
    if tuple(value_shape) != key_shape:
        raise ValueError(f"value must have key's shape {key_shape}, got {tuple(value_shape)}")
    if (key_shape[0], key_shape[3]) != (batch, head_dim):
        raise ValueError(
            f"key must have batch {batch} and head_dim {head_dim} as query, got {key_shape}"
        )
    if heads != 0 and (key_shape[1] == 0 or heads % key_shape[1]):
        raise ValueError(f"query must have a multiple of key's {key_shape[1]} heads, got {heads}")
    integer("head_dim", head_dim, minimum=1, maximum=MAX_HEAD_DIM)
    integer("key length", key_shape[2], minimum=0)
    return core_dtype


#: Most calls have the shapes of a call before: another layer's.
_known_fitting_shapes = functools.lru_cache(maxsize=64)(_fitting_shapes)


def no_dropout(value: Any) -> None:
    """That no attention weights are to be dropped, which are never all formed."""
    if finite("dropout", value, minimum=0.0):
        raise ValueError(
            f"dropout must be 0 in fused attention, got {value!r}: use ntk_alibi.patch(model, "
            'attention="eager"), or bias.tensor(...) as attn_mask of torch\'s '
            "scaled_dot_product_attention(dropout_p=...)"
        )


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


def per_head(
    name: str,
    value: Any,
    heads: int | None = None,
    *,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> Any:
    """A number for each head, (heads,): a float64 array of our own, or the tensor that came.

    Where the number of heads is known one number may stand for all.
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
    """Numbers of these axes, each `least` long: a float64 array of our own, or the tensor."""
    array = _parameter(name, value)
    if array.ndim != len(axes) or min(array.shape) < least:
        raise ValueError(f"{name} must have shape ({', '.join(axes)}), got {tuple(array.shape)}")
    return array


def has_numbers(value: Any) -> bool:
    """Whether an array or a tensor holds numbers that can be looked at."""
    return not (_arrays.is_tracing() or getattr(value, "is_meta", False))


def _parameter(name: str, value: Any) -> Any:
    if _arrays.is_tensor(value):
        if _arrays.dtype_name(value.dtype) not in (*_arrays.CORE_DTYPES, "float64"):
            raise TypeError(f"{name} must be floating, got dtype {value.dtype}")
        return value
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold numbers, got {value!r}") from None
    array.flags.writeable = False
    return array


def _within(name: str, array: NDArray[Any], above: float, at_most: float) -> None:
    wrong = array[~(np.isfinite(array) & (array > above) & (array <= at_most))]
    if wrong.size:
        limits = [f"> {above:g}"] * (above > -math.inf) + [f"<= {at_most:g}"] * (at_most < math.inf)
        expected = f"finite and {' and '.join(limits)}" if limits else "finite"
        raise ValueError(f"{name} must be {expected}, got {wrong[0]}")


def without_nan(name: str, array: Any) -> None:
    """That there is no NaN among numbers, and no +infinity."""
    if has_numbers(array):
        numbers = _arrays.to_numpy(array)
        wrong = numbers[np.isnan(numbers) | np.isposinf(numbers)]
        if wrong.size:
            raise ValueError(f"{name} must not hold NaN or infinity, got {wrong[0]}")


def log_gates(value: Any) -> Any:
    """Logarithms of forget gates (batch, heads, keys); what padding holds does not matter."""
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


def keys_for_queries(queries: int, keys: int) -> None:
    """That there are keys whose positions the queries can have."""
    if queries > keys:
        raise ValueError(
            f"query_positions must be given for more queries than keys, {queries} and {keys}"
        )


def gated_problem(shape: tuple[int, ...], problem: tuple[int, ...], *, placed: bool) -> None:
    """Log gates (batch, heads, keys) for a problem whose queries are the last keys."""
    batch, heads, queries, keys = problem
    if shape not in ((1, heads, keys), (batch, heads, keys)):
        raise ValueError(
            f"log_gates must have shape ({batch}, {heads}, {keys}), for query and key, got {shape}"
        )
    if queries > keys:
        raise ValueError(f"query must not be longer than key with forget gates, got {queries}")
    if placed:
        raise ValueError(
            "query_positions must be None and align 'end' with forget gates, whose queries are "
            "the last keys"
        )


def finite_gates(gates: Any) -> None:
    """That what is summed is finite."""
    if has_numbers(gates) and not np.isfinite(_arrays.to_numpy(gates)).all():
        raise ValueError("log_gates must be finite where keys are real, got NaN or -infinity")


def distance_table(table: Any, begin: Any) -> tuple[Any, int]:
    """A table (heads, distances) and its first distance."""
    array = numbers("table", table, ("heads", "distances"), least=1)
    without_nan("table", array)
    return array, integer("begin", begin, minimum=-MAX_LENGTH)


def covered(begin: int, size: int, seen: tuple[int, int]) -> None:
    """That a table reaches over all distances that are seen."""
    if seen[0] <= seen[1] and not begin <= seen[0] <= seen[1] < begin + size:
        raise ValueError(
            f"table must cover the distances {seen[0]} to {seen[1]} that are seen, got {size} from "
            f"{begin} on"
        )


#: Distances that a table may span: 2 GiB for 8 heads.
MAX_SPAN = 2**26


def span(seen: tuple[int, int]) -> None:
    """That a table over the distances that are seen is no unreasonable one."""
    if seen[1] - seen[0] >= MAX_SPAN:
        raise ValueError(
            f"positions must be less than {MAX_SPAN} apart for a bias that is a table, got "
            f"distances {seen[0]} to {seen[1]}"
        )


def function_result(values: Any, heads: int, count: int) -> None:
    """What a function of distance returned for `count` of them."""
    if not hasattr(values, "shape") or tuple(values.shape) not in ((count,), (heads, count)):
        got = tuple(values.shape) if hasattr(values, "shape") else repr(values)
        raise ValueError(
            f"function must return ({heads}, {count}) or ({count},) for {count} distances, got "
            f"{got}"
        )
    without_nan("function's values", values)


def buckets(count: int, max_distance: Any, *, bidirectional: bool) -> int:
    """How many buckets and up to which distance, as T5 has them; the checked max_distance."""
    exact = count // 2 // (2 if bidirectional else 1)
    if exact < 1:
        raise ValueError(
            f"values must have at least {4 if bidirectional else 2} buckets, got {count}"
        )
    return integer("max_distance", max_distance, minimum=exact + 1)


def function(value: Any) -> None:
    """Something to call."""
    if not callable(value):
        raise TypeError(f"function must be callable, got {value!r}")


def heads_of(name: str, got: int, heads: int) -> None:
    """That an array has as many heads as a bias."""
    if got != heads:
        raise ValueError(f"{name} must have the bias's {heads} heads, got {got}")


def nonzero_scale(value: Any, head_dim: int) -> float:
    """A scale of dot products by which something is divided."""
    scale = 1.0 / math.sqrt(head_dim) if value is None else value
    number = finite("scale", scale, minimum=-math.inf)
    if number == 0.0:
        raise ValueError(f"scale must not be 0, got {value!r}")
    return number


def known_positions(*positions: Any) -> None:
    """That no positions are given where torch is tracing and a table's length depends on them."""
    if any(x is not None for x in positions):
        raise ValueError(
            "query_positions and key_positions must be None where torch traces a bias over "
            "distance: pass a DistanceTable, which knows its distances"
        )


def alignment(value: Any, query_positions: Any) -> str:
    """Where queries begin or end among the keys."""
    align = choice("align", value, ("end", "start"))
    if align == "start" and query_positions is not None:
        raise ValueError("query_positions must be None with align='start', which gives them")
    return align


def bias_object(bias: Any) -> None:
    """An object such as ALiBi, of any rule."""
    if not hasattr(bias, "num_heads") or not callable(getattr(bias, "tensor", None)):
        raise TypeError(
            "bias must be an object with num_heads and tensor(query_length, key_length) such as "
            f"ALiBi(8), got {bias!r}"
        )


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
            if _arrays.is_tensor(array) != _arrays.is_tensor(outputs[0]):
                raise TypeError(
                    f"{name} must all be arrays or all be tensors, got {type(array).__name__} and "
                    f"{type(outputs[0]).__name__}"
                )


def as_many(name: str, numbers: Any, count: int) -> NDArray[np.float64]:
    """So many numbers, NaN for None."""
    array = np.array(list(numbers), np.float64)
    if array.shape != (count,):
        raise ValueError(f"{name} must be {count} numbers, got {array.size} ({numbers!r})")
    return array


def accuracies(name: str, value: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Shares of this shape between 0 and 1, or NaN."""
    array = np.asarray(value, np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape (depths, lengths) = {shape}, got {array.shape}")
    if (array < 0).any() or (array > 1).any():
        raise ValueError(f"{name} must be between 0 and 1, got {array.min()} to {array.max()}")
    return array


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
            "ALiBi(...).tensor(...) and patch(...) with compat='exact' take it"
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
