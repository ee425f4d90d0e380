"""Which keys each query sees, and where queries and keys stand."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import arange, rows_of_integers


def checked_attention_mask(value: Any, name: str = "attention_mask") -> NDArray[np.uint8]:
    """A padding mask (batch, keys) of 0 and 1, any dtype."""
    if not isinstance(value, np.ndarray) and not _arrays.is_tensor(value):
        raise TypeError(f"{name} must be a NumPy array or a torch tensor, got {value!r}")
    mask = _arrays.to_numpy(value)
    if mask.ndim != 2:
        raise ValueError(f"{name} must have shape (batch, keys), got {mask.shape}")
    if mask.shape[1] > _checks.MAX_LENGTH:
        raise ValueError(f"{name} must have at most {_checks.MAX_LENGTH} keys, got {mask.shape[1]}")
    ones = mask == 1
    if not np.logical_or(ones, mask == 0).all():
        other = mask[~ones & (mask != 0)].flat[0]
        raise ValueError(f"{name} must hold only 0 and 1, got {other}")
    return np.ascontiguousarray(ones).view(np.uint8)


def checked_key_padding_mask(value: Any, batch: int, keys: int) -> NDArray[np.uint8] | None:
    """A padding mask of this shape, or None."""
    if value is None:
        return None
    mask = checked_attention_mask(value, "key_padding_mask")
    if mask.shape != (batch, keys):
        raise ValueError(
            f"key_padding_mask must have shape (batch, keys) = ({batch}, {keys}), got {mask.shape}"
        )
    return mask


def checked_positions(name: str, value: Any, batch: int, length: int) -> NDArray[np.int32] | None:
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
    if array.size and not (array.min() >= 0 and array.max() <= _checks.MAX_LENGTH):
        raise ValueError(
            f"{name} must be between 0 and {_checks.MAX_LENGTH}, got {array.min()} to {array.max()}"
        )
    return np.require(np.atleast_2d(array), np.int32, ["C", "ALIGNED"])


def checked_causal_block(value: Any, *, causal: bool) -> int | None:
    """The length of blocks of causal attention, or None."""
    if value is None:
        return None
    if not causal:
        raise ValueError(f"causal must be True with causal_block, got causal_block={value!r}")
    return _checks.integer("causal_block", value, minimum=1)


def checked_visibility(window: Any, sink: Any, block: Any) -> tuple[int | None, int, int | None]:
    """What causal queries see; sinks are something only where not everything is seen."""
    if window is not None:
        window = _checks.integer("window", window, minimum=1)
    block = checked_causal_block(block, causal=True)
    sink = _checks.integer("sink", sink, minimum=0)
    if sink and window is None and block is None:
        raise ValueError(f"sink must be 0 without window or causal_block, got {sink}")
    return window, sink, block


def check_keys_for_queries(queries: int, keys: int) -> None:
    """That there are keys whose positions the queries can have."""
    if queries > keys:
        raise ValueError(
            f"query_positions must be given for more queries than keys, {queries} and {keys}"
        )


def checked_alignment(value: Any, query_positions: Any) -> str:
    """Where queries begin or end among the keys."""
    align = _checks.choice("align", value, ("end", "start"))
    if align == "start" and query_positions is not None:
        raise ValueError("query_positions must be None with align='start', which gives them")
    return align


class Problem(NamedTuple):
    """A call of attention as far as a bias depends on it; all checked.

    Attributes:
        shape: batch, heads, queries, keys.
        causal, window, causal_block, sink, align: as of `attention`.
        mask: real keys (batch, keys), or None.
        query_positions, key_positions: (1 or batch, length), or None for the columns.
        placed: whether the caller said where the queries are.
    """

    shape: tuple[int, ...]
    causal: bool = True
    window: int | None = None
    causal_block: int | None = None
    sink: int = 0
    align: str = "end"
    mask: Any = None
    query_positions: Any = None
    key_positions: Any = None
    placed: bool = False

    def distances(self) -> tuple[int, int]:
        """The least and the greatest distance that is seen; (0, -1) if none is."""
        queries, keys = self.shape[2:]
        if queries == 0 or keys == 0:
            return 0, -1
        first = 0 if self.align == "start" else keys - queries
        q_least, q_most = _range(self.query_positions, first, first + queries - 1)
        k_least, k_most = _range(self.key_positions, 0, keys - 1)
        least, most = q_least - k_most, q_most - k_least
        if self.causal:
            least = max(least, 0)
        if self.window is not None:
            least = max(least, 1 - self.window)
        if self.sink == 0:
            if self.window is not None:
                most = min(most, self.window - 1)
            if self.causal_block is not None:
                most = min(most, 2 * self.causal_block - 1)
        return (least, most) if least <= most else (0, -1)


def _range(positions: NDArray[np.int32] | None, first: int, last: int) -> tuple[int, int]:
    if positions is None:
        return first, last
    return int(positions.min()), int(positions.max())


def aligned_positions(
    key_positions: NDArray[np.int32] | None, queries: int, keys: int, align: str
) -> NDArray[np.int32] | None:
    """Positions of queries that stand beside the first or the last keys, (1 or batch, queries)."""
    if key_positions is None:
        return np.arange(queries, dtype=np.int32)[None] if align == "start" else None
    check_keys_for_queries(queries, keys)
    first = 0 if align == "start" else keys - queries
    return np.ascontiguousarray(key_positions[:, first : first + queries])


def first_positions(query: Any, key_positions: Any) -> Any:
    """Positions of queries that stand beside the first keys, (queries,) or (batch, queries)."""
    queries = query.shape[2]
    if key_positions is None:
        return _arrays.arange(queries, query)
    check_keys_for_queries(queries, key_positions.shape[-1])
    return key_positions[..., :queries]


def visible_keys(
    query_positions: Any,
    key_positions: Any,
    *,
    causal: bool,
    window: int | None,
    causal_block: int | None,
    sink: int,
    key_padding_mask: Any,
) -> Any:
    """How many keys each query sees, (1 or batch, queries): two intervals of sorted positions."""
    module, beyond = _arrays.namespace(query_positions), _checks.MAX_LENGTH + 1
    if key_padding_mask is not None:
        real = _arrays.boolean(key_padding_mask, key_positions)
        key_positions = module.where(real, key_positions, 2 * beyond)
    p = query_positions
    first, end = module.full_like(p, -beyond), module.full_like(p, beyond)
    if window is not None:
        first, end = p - (window - 1), p + window
    if causal_block is not None:
        first = module.maximum(first, (p // causal_block - 1) * causal_block)
    if causal:
        end = module.minimum(end, p + 1)
    sunk = module.minimum(first, module.clip(p + 1, None, sink))
    below_first, below_end, below_sunk = _arrays.counts_below(key_positions, (first, end, sunk))
    return below_end - below_first + below_sunk


def both_positions(
    query_positions: Any, key_positions: Any, queries: int, keys: int, example: Any
) -> tuple[Any, Any]:
    """Positions of queries and keys, (1 or batch, length) int64; the last ones aligned."""
    at_keys = rows_of_integers(key_positions, keys, example)
    if query_positions is not None:
        return rows_of_integers(query_positions, queries, example), at_keys
    if key_positions is not None:
        return at_keys[:, keys - queries :], at_keys
    return arange(queries, example)[None] + (keys - queries), at_keys
