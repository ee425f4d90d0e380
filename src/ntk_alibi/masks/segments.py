"""Packed segments: several texts in one row of tokens, each computed as if it were alone.

A segment is a run of keys with one id, and the queries with that id. A call with segments is cut
into one call per segment, so that kernels, biases and options never see two segments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import ArrayT
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import has_values
from ntk_alibi.masks.cut import ALL, Cut


class SegmentIds(NamedTuple):
    """The segment id of each token of a call.

    Attributes:
        queries: integers (1 or batch, queries), arrays or tensors.
        keys: integers (1 or batch, keys).
    """

    queries: Any
    keys: Any

    @staticmethod
    def checked(
        segment_ids: Any, query_segment_ids: Any, shape: tuple[int, ...], *, read: bool
    ) -> SegmentIds:
        """Check the arguments of `attention` and return them for a shape (batch, ..., Q, K).

        Values are read and checked only if `read` is True.
        """
        batch, _, queries, keys = shape
        of_keys = _checked_ids("segment_ids", segment_ids, batch, keys, read=read)
        if query_segment_ids is not None:
            name = "query_segment_ids"
            of_queries = _checked_ids(name, query_segment_ids, batch, queries, read=read)
            return SegmentIds(of_queries, of_keys)
        if queries > keys:
            raise ValueError(
                "query_segment_ids must be given for more queries than keys, got "
                f"{queries} and {keys}"
            )
        return SegmentIds(of_keys[:, keys - queries :], of_keys)

    def cut(self, cut: Cut) -> SegmentIds:
        """Return the ids of a part."""
        return SegmentIds(cut.of(self.queries, "Bq"), cut.of(self.keys, "Bk"))

    def segments(self, batch: int) -> list[Cut]:
        """Return the segments that have queries; neighbouring rows with the same columns share one.

        Raises:
            ValueError: the ids cannot be read.
        """
        if not has_values(*self):
            raise ValueError(
                "segment_ids must hold values for this bias, log_n, rotary, dtype or device, got "
                "a tensor that torch traces or maps"
            )
        if batch == 0:
            return []
        rows = max(len(self.queries), len(self.keys))
        by_row = [self._columns_in_row(row) for row in range(rows)]
        if rows == 1:
            return [Cut(slice(0, batch), ALL, *columns, alone=True) for columns in by_row[0]]
        starts = [row for row in range(rows) if row == 0 or by_row[row] != by_row[row - 1]]
        return [
            Cut(slice(start, end), ALL, *columns, alone=True)
            for start, end in zip(starts, [*starts[1:], rows], strict=True)
            for columns in by_row[start]
        ]

    def _columns_in_row(self, row: int) -> list[tuple[slice, slice]]:
        """Return the columns of queries and of keys for each segment of a row."""
        queries, keys = (ids[row if len(ids) > 1 else 0] for ids in self)
        keys_by_id = {int(keys[run.start]): run for run in _runs(keys)}
        none = slice(0, 0)
        return [(run, keys_by_id.get(int(queries[run.start]), none)) for run in _runs(queries)]

    def positions(
        self, at_queries: Any, at_keys: Any, *, at_end: bool, read: bool
    ) -> tuple[Any, Any]:
        """Return the positions of queries and keys, (1 or batch, length), filling in missing ones.

        Keys without positions get their columns in the segment; queries without positions get the
        positions of the segment's last keys.

        Args:
            at_queries: positions, or None.
            at_keys: positions, or None.
            at_end: whether the queries are the last keys of the whole row.
            read: whether values can be read.

        Raises:
            ValueError: given key positions descend within a segment, or a segment has fewer keys
                with positions than queries.
        """
        columns = at_keys is None
        if columns:
            at_keys = self._columns_in_segments()
        elif read:
            at_keys = _arrays.to_numpy(at_keys)
            self._check_ascent(at_keys)
        if at_queries is not None:
            return _arrays.to_numpy(at_queries) if read else at_queries, at_keys
        if at_end:
            return at_keys[:, at_keys.shape[1] - self.queries.shape[1] :], at_keys
        if not read:
            raise ValueError(
                "query_segment_ids must be None, or query_positions be given, where torch traces "
                "or maps attention"
            )
        rows = max(map(len, (*self, at_keys)))
        at_queries = np.zeros((rows, self.queries.shape[1]), np.int32)
        for segment in self.segments(rows):
            queries, keys = (x.stop - x.start for x in (segment.queries, segment.keys))
            if queries <= keys:
                end = segment.keys.stop
                last = Cut(segment.rows).of(at_keys, "B")[:, end - queries : end]
            elif columns:  # the first queries are before the first key
                last = np.arange(keys - queries, keys)
            else:
                raise ValueError(
                    "query_positions must be given for segments with more queries than keys, got "
                    f"{queries} and {keys}"
                )
            at_queries[segment.rows, segment.queries] = last
        return at_queries, at_keys

    def _columns_in_segments(self) -> Any:
        """Return the column of each key within its segment, int32; torch can trace it."""
        ids = self.keys
        backend = backend_of(ids)
        xp, columns = backend.xp, backend.arange(ids.shape[1])
        before = ids[:, xp.clip(columns - 1, 0, None)]  # a slice has another length
        begins = xp.where(ids != before, columns, 0)
        return backend.cast(columns - backend.running_maximum(begins), "int32")

    def _check_ascent(self, at_keys: NDArray[np.int32]) -> None:
        decreases = (np.diff(at_keys) < 0) & (self.keys[:, 1:] == self.keys[:, :-1])
        if decreases.any():
            row, column = np.argwhere(decreases)[0]
            before, after = at_keys[row if len(at_keys) > 1 else 0, column : column + 2]
            raise ValueError(
                f"key_positions must not decrease within a segment of segment_ids, got {before} "
                f"and then {after} at key {column + 1} of row {row}"
            )


def segment_ids_from_cu_seqlens(cu_seqlens: ArrayT) -> ArrayT:
    """Convert cumulative lengths of packed segments to the segment id of each token.

    Formula::

        ids[k] = t  for  cu_seqlens[t] <= k < cu_seqlens[t + 1]

    Args:
        cu_seqlens: (texts + 1,) integers, as flash-attn's variable-length functions take them:
            0, the length of the first text, the length of the first two, ..., the total.

    Returns:
        (tokens,) int32, an array or a tensor like cu_seqlens, for `segment_ids` of `attention`.
        The id of an empty text does not occur.

    Raises:
        TypeError: cu_seqlens are not integers.
        ValueError: cu_seqlens do not begin with 0, or decrease.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> na.segment_ids_from_cu_seqlens(np.array([0, 2, 5]))
        array([0, 0, 1, 1, 1], dtype=int32)

    Source: flash-attn, flash_attn_varlen_func.
    """
    ends = _checks.constant("cu_seqlens", cu_seqlens)
    if ends.ndim != 1 or ends.size == 0:
        raise ValueError(f"cu_seqlens must have shape (texts + 1,), got {ends.shape}")
    if ends.dtype.kind not in "iu":
        raise TypeError(f"cu_seqlens must be integers, got dtype {ends.dtype}")
    ends = ends.astype(np.int64)
    if ends[0] != 0:
        raise ValueError(f"cu_seqlens must begin with 0, got {ends[0]}")
    lengths = np.diff(ends)
    if (lengths < 0).any():
        text = int(np.argmax(lengths < 0))
        raise ValueError(f"cu_seqlens must not fall, got {ends[text]} and then {ends[text + 1]}")
    ids = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    result: Any = backend_of(cu_seqlens).convert(ids)
    return result  # type: ignore[no-any-return]


def _checked_ids(name: str, value: Any, batch: int, length: int, *, read: bool) -> Any:
    """Check segment ids and return them with shape (1 or batch, length)."""
    ids = value
    if read:  # the core reads rows in order, which the array of a caller may not have
        ids = np.require(_checks.constant(name, value), requirements=["C", "ALIGNED"])
    shape = tuple(ids.shape)
    if not _arrays.has_shape(ids, (length,), (1, length), (batch, length)):
        raise ValueError(
            f"{name} must have shape ({length},), (1, {length}) or ({batch}, {length}), got {shape}"
        )
    if not _arrays.dtype_name(ids.dtype).startswith(("int", "uint")):
        raise TypeError(f"{name} must be integers, got dtype {ids.dtype}")
    ids = ids if ids.ndim == 2 else ids[None]
    if not read:
        return ids
    for row, row_ids in enumerate(ids):
        seen: set[int] = set()
        for run in _runs(row_ids):
            segment = int(row_ids[run.start])
            if segment in seen:
                raise ValueError(
                    f"{name} must give each segment one run of tokens, got {segment} again at "
                    f"token {run.start} of row {row}"
                )
            seen.add(segment)
    return ids


def _runs(ids: NDArray[Any]) -> list[slice]:
    """Return the runs of equal ids, in order."""
    if len(ids) == 0:
        return []
    starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist()]
    return list(map(slice, starts, [*starts[1:], len(ids)]))
