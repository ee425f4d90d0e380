"""What a bias needs to know of an attention call: shape, mask, padding, positions, segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._backends import backend_of, rows_of_integers
from ntk_alibi._torch_state import has_values, is_tracing
from ntk_alibi.masks.block_mask import BlockMask
from ntk_alibi.masks.cut import Cut
from ntk_alibi.masks.mask import Mask
from ntk_alibi.masks.segments import SegmentIds

#: The default alignment: the last query at the last key. Most calls pass this very object.
AT_END: Literal["end"] = "end"

#: Pairs are counted for so many queries at a time.
QUERIES_AT_ONCE = 256

_TOO_MANY = "query_positions must be given for more queries than keys, got {} queries and {} keys"


class Problem(NamedTuple):
    """The checked part of an attention call on which a bias can depend.

    Attributes:
        shape: batch, heads, queries, keys.
        mask: the rule that decides from positions which keys a query sees.
        key_padding_mask: (batch, keys), 1 for real keys, or None.
        query_positions, key_positions: integers (1 or batch, length), or None if positions are
            columns and the last query is at the last key.
        explicit_positions: whether the caller chose the positions of queries, by query_positions
            or align="start".
        counts: the number of tokens of each row, (1 or batch,); None where it follows from the keys
            and padding.
        segment_ids: the segment of each token, None without packed segments. Positions are then
            given; they count from 0 in each segment unless the caller has others.
        visible: pairs that may be visible, besides all that hides keys; None for all.
    """

    shape: tuple[int, ...]
    mask: Mask = Mask()
    key_padding_mask: Any = None
    query_positions: Any = None
    key_positions: Any = None
    explicit_positions: bool = False
    counts: Any = None
    segment_ids: SegmentIds | None = None
    visible: BlockMask | None = None

    @staticmethod
    def checked(
        shape: tuple[int, ...],
        mask: Mask,
        key_padding_mask: Any,
        query_positions: Any,
        key_positions: Any,
        align: Any = "end",
        like: Any = None,
        segment_ids: Any = None,
        query_segment_ids: Any = None,
    ) -> Problem:
        """Check the arguments and return the problem of a shape (batch, heads, queries, keys).

        Shapes are checked always, values of arrays in main memory only, and not while torch traces;
        segment ids are read on any device. `like` is a tensor on the device of the call, or None.
        """
        batch, _, queries, keys = shape
        align = checked_alignment(align, query_positions)
        explicit = query_positions is not None or align == "start"
        arrays = key_padding_mask, key_positions, query_positions
        unread = _unread((*arrays, segment_ids, query_segment_ids), like)
        read = not unread and backend_of(like).in_main_memory
        real = checked_key_padding_mask(key_padding_mask, batch, keys, read=read)
        at_keys = checked_positions("key_positions", key_positions, batch, keys, read=read)
        at_queries = checked_positions(
            "query_positions", query_positions, batch, queries, read=read
        )
        ids = None
        if segment_ids is not None:
            if align == "start":
                raise ValueError("align must be 'end' with segment_ids, got 'start'")
            ids = SegmentIds.checked(segment_ids, query_segment_ids, shape, read=not unread)
            at_end = query_segment_ids is None
            at_queries, at_keys = ids.positions(at_queries, at_keys, at_end=at_end, read=not unread)
        elif query_segment_ids is not None:
            raise ValueError("segment_ids must be given with query_segment_ids, got None")
        if at_queries is None:
            at_queries = aligned_positions(at_keys, queries, keys, align)
        return Problem(shape, mask, real, at_queries, at_keys, explicit, segment_ids=ids)

    def check_columns(self) -> None:
        """Refuse queries without positions if the first, before all keys, is too far to see one."""
        queries, keys = self.shape[2:]
        if self.query_positions is None and self.mask.hides_all(queries, keys):
            raise ValueError(_TOO_MANY.format(queries, keys))

    @property
    def traced(self) -> bool:
        """Whether positions have no values, because torch traces the call."""
        return not has_values(self.query_positions, self.key_positions)

    @property
    def plain(self) -> bool:
        """Whether all keys are real, all positions are columns, and no pairs are masked."""
        return (
            self.segment_ids is None
            and self.visible is None
            and self.key_padding_mask is None
            and self.query_positions is None
            and self.key_positions is None
        )

    def segments(self) -> list[Cut]:
        """Return the packed segments that have queries; [] if nothing is packed.

        Raises:
            ValueError: the segment ids cannot be read.
        """
        return [] if self.segment_ids is None else self.segment_ids.segments(self.shape[0])

    def positions(self, like: Any = None) -> tuple[Any, Any]:
        """Return positions of queries and keys, (1 or batch, length) int64 of like's framework."""
        queries, keys = self.shape[2:]
        backend = backend_of(like)
        at_keys = rows_of_integers(backend, self.key_positions, keys)
        if self.query_positions is None:
            return backend.arange(queries)[None] + (keys - queries), at_keys
        return rows_of_integers(backend, self.query_positions, queries), at_keys

    def visible_count(self, like: Any = None) -> Any:
        """Count the keys that each query sees, in like's framework.

        The shape is (1 or batch, Q), and (1 or batch, 1 or heads, Q) with a mask of pairs.
        """
        if self.visible is not None:
            return self._count_pairs(like)
        if self.segment_ids is not None:
            counts = self._count_by_segment(Problem.visible_count)
            return backend_of(like).convert(counts)
        queries, keys = self.positions(like)
        if self.key_positions is None and self.key_padding_mask is None:
            keys = self.shape[3]
        return self.mask.visible_count(queries, keys, self.key_padding_mask)

    def token_counts(self) -> NDArray[np.int64]:
        """Count the real tokens of each row, (1 or batch,), or of each query's segment.

        The latter are (batch, queries). A dynamic scaling computes its slopes from these counts.
        """
        if self.segment_ids is not None:
            return self._count_by_segment(Problem.token_counts)
        if self.counts is not None:
            return _checks.constant("attention_mask", self.counts)
        if self.key_padding_mask is None:
            return np.array([self.shape[3]])
        real = _checks.constant("attention_mask", self.key_padding_mask) != 0
        return cast("NDArray[np.int64]", real.sum(axis=1))

    def distances(self) -> tuple[int, int]:
        """Return the smallest and the largest visible distance; (0, -1) if no key is visible."""
        if self.segment_ids is not None:
            spans = [self.cut(segment).distances() for segment in self.segments()]
            ends = [span for span in spans if span[0] <= span[1]] or [(0, -1)]
            return min(least for least, _ in ends), max(most for _, most in ends)
        batch, _, queries, keys = self.shape
        if batch == 0 or queries == 0 or keys == 0:
            return 0, -1
        if self.query_positions is None and self.key_positions is None:
            return self.mask.bounded(1 - queries, keys - 1)
        q_least, q_most = _ranges(self.query_positions, keys - queries, keys - 1)
        k_least, k_most = _ranges(self.key_positions, 0, keys - 1)
        least, most = int(np.min(q_least - k_most)), int(np.max(q_most - k_least))
        least, most = self.mask.bounded(least, most)
        return (least, most) if least <= most else (0, -1)

    def _count_pairs(self, like: Any) -> Any:
        """Count the visible keys of each query, some queries at a time."""
        runs = [
            slice(begin, min(begin + QUERIES_AT_ONCE, self.shape[2]))
            for begin in range(0, max(self.shape[2], 1), QUERIES_AT_ONCE)
        ]
        counts = [self.visible_pairs(like, run).sum(-1) for run in runs]
        return backend_of(counts[0]).xp.concatenate(counts, -1)

    def visible_pairs(self, like: Any, run: slice = slice(None)) -> Any:
        """Return which keys a run of queries sees, (1 or batch, 1 or heads, run, K)."""
        at_queries, at_keys = self.positions(like)
        seen = self.mask.visible(at_queries[:, run], at_keys)[:, None]
        if self.visible is not None:
            seen = seen & self.visible.like(like)[:, :, run]
        if self.key_padding_mask is not None:
            seen = seen & backend_of(like).convert(self.key_padding_mask, "bool")[:, None, None, :]
        if self.segment_ids is not None:
            ids: Any = self.segment_ids
            queries, keys = map(backend_of(like).convert, ids)
            seen = seen & (queries[:, run, None] == keys[:, None, :])[:, None]
        return seen

    def _count_by_segment(self, count: Callable[[Problem], Any]) -> NDArray[np.int64]:
        """Return counts for all queries, (batch, queries), from the problem of each segment.

        `count` returns (1 or rows, queries) for a segment's queries or (1 or rows,) for its rows.
        """
        counts = np.zeros((self.shape[0], self.shape[2]), np.int64)
        for segment in self.segments():
            counted = count(self.cut(segment))
            counted = counted if counted.ndim == 2 else counted[:, None]
            counts[segment.rows, segment.queries] = counted
        return counts

    def cut(self, cut: Cut) -> Problem:
        """Return the problem of a part, whose queries and keys keep their positions.

        Biases take whole problems only: cut the `KernelBias` of the whole problem for a part.
        """
        shape, at_queries, at_keys = self.shape, self.query_positions, self.key_positions
        queries, keys = shape[2:]
        if cut.keys.start or not cut.keeps_alignment(shape):
            if at_queries is None:
                at_queries = np.arange(keys - queries, keys, dtype=np.int32)[None]
            if at_keys is None:
                at_keys = np.arange(keys, dtype=np.int32)[None]
        real = self.key_padding_mask
        if (part := cut.of(real, "Bk")) is not real:
            real = backend_of(part).contiguous(part)
        problem = self._replace(
            shape=cut.sizes(shape),
            key_padding_mask=real,
            query_positions=cut.of(at_queries, "Bq"),
            key_positions=cut.of(at_keys, "Bk"),
            counts=cut.of(self.counts, "B"),
            segment_ids=self.segment_ids and self.segment_ids.cut(cut),
            visible=self.visible and self.visible.cut(cut),
        )
        return problem._alone() if cut.alone else problem

    def _alone(self) -> Problem:
        """Return the problem of one segment, without positions that equal its columns."""
        at_queries, at_keys, (queries, keys) = (
            self.query_positions,
            self.key_positions,
            self.shape[2:],
        )
        if (at_keys == np.arange(keys)).all():
            columns = (at_queries == np.arange(keys - queries, keys)).all()
            at_queries, at_keys = None if columns else at_queries, None
        return self._replace(query_positions=at_queries, key_positions=at_keys, segment_ids=None)


def aligned_positions(key_positions: Any, queries: int, keys: int, align: str) -> Any:
    """Return the positions of queries that begin with the first key, or end with the last.

    None stands for the default, queries in the last columns.
    """
    if key_positions is None:
        return np.arange(queries, dtype=np.int32)[None] if align == "start" else None
    if queries > keys:
        raise ValueError(_TOO_MANY.format(queries, keys))
    first = 0 if align == "start" else keys - queries
    return key_positions[..., first : first + queries]


def checked_alignment(align: Any, query_positions: Any = None) -> str:
    """Return the alignment of queries without positions, "end" or "start", after checking it."""
    alignment = _checks.choice("align", align, (AT_END, "start"))
    if alignment == "start" and query_positions is not None:
        raise ValueError("query_positions must be None with align='start', which sets them")
    return alignment


def checked_attention_mask(value: Any, name: str = "attention_mask") -> NDArray[np.uint8]:
    """Check a padding mask (batch, keys) of 0 and 1, of any dtype, and return it as uint8."""
    _checks.array(name, value)
    mask = _checks.constant(name, value)
    if mask.ndim != 2:
        raise ValueError(f"{name} must have shape (batch, keys), got {mask.shape}")
    if mask.shape[1] > _checks.MAX_LENGTH:
        raise ValueError(f"{name} must have at most {_checks.MAX_LENGTH} keys, got {mask.shape[1]}")
    ones = mask == 1
    if not np.logical_or(ones, mask == 0).all():
        other = mask[~ones & (mask != 0)].item(0)
        raise ValueError(f"{name} must hold only 0 and 1, got {_checks.briefly(other)}")
    return np.ascontiguousarray(ones).view(np.uint8)


def checked_key_padding_mask(value: Any, batch: int, keys: int, *, read: bool = True) -> Any:
    """Check a padding mask against (batch, keys) and return it, uint8 if it is read, or None."""
    if value is None:
        return None
    mask = checked_attention_mask(value, "key_padding_mask") if read else value
    if not _arrays.has_shape(mask, (batch, keys)):
        raise ValueError(
            f"key_padding_mask must have shape (batch, keys) = ({batch}, {keys}), got "
            f"{tuple(mask.shape)}"
        )
    return mask


def checked_positions(name: str, value: Any, batch: int, length: int, *, read: bool = True) -> Any:
    """Check positions, (length,) or (batch, length), and return (1 or batch, length), or None.

    If they are read, they become int32.
    """
    if value is None:
        return None
    array = _checks.constant(name, value) if read else value
    if read and array.dtype.kind == "f" and (broken := array[array != np.floor(array)]).size:
        raise ValueError(f"{name} must be integers, got {broken[0]}")
    shape = tuple(array.shape)
    if not _arrays.dtype_name(array.dtype).startswith(("int", "uint")) and 0 not in shape:
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    if not _arrays.has_shape(array, (length,), (1, length), (batch, length)):
        raise ValueError(f"{name} must have shape ({length},) or ({batch}, {length}), got {shape}")
    if not read:
        return array if array.ndim == 2 else array[None]
    if array.size and not (array.min() >= 0 and array.max() <= _checks.MAX_LENGTH):
        raise ValueError(
            f"{name} must be between 0 and {_checks.MAX_LENGTH}, got {array.min()} to {array.max()}"
        )
    return np.require(np.atleast_2d(array), np.int32, ["C", "ALIGNED"])


def _unread(arrays: tuple[Any, ...], like: Any) -> bool:
    """Return whether values cannot be read, because torch traces or maps."""
    if is_tracing():
        return True
    if like is None:
        return False
    return like.is_meta or not has_values(*(x for x in arrays if not getattr(x, "is_meta", False)))


def _ranges(positions: Any, first: int, last: int) -> tuple[Any, Any]:
    """Return the smallest and the largest position of each row, (rows,), or of all rows."""
    if positions is None:
        return first, last
    rows = _arrays.to_numpy(positions).astype(np.int64)
    return rows.min(axis=1), rows.max(axis=1)
