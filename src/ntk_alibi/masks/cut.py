"""A cut of a call: the rows, heads, queries and keys of a part of it."""

from __future__ import annotations

from typing import Any, NamedTuple

#: Everything along an axis.
ALL = slice(None)


class Cut(NamedTuple):
    """What a part of a call has of its rows, heads, queries and keys.

    Bias, problem, mask of pairs, dropout and call have one method for it, `cut`.

    Attributes:
        rows: rows of the batch.
        heads: heads of the queries.
        queries: columns of the queries.
        keys: columns of the keys; an empty slice for queries whose segment has no keys.
        alone: whether the part is a call of its own, as a packed segment is: its queries are its
            last keys, and positions that equal its columns are left out.
    """

    rows: slice = ALL
    heads: slice = ALL
    queries: slice = ALL
    keys: slice = ALL
    alone: bool = False

    def of(self, array: Any, axes: str) -> Any:
        """Return the part of an array, the array itself if it has no less, or None for None.

        Args:
            array: an array, a tensor or None.
            axes: what its first axes are: b (rows), h (heads), q (queries), k (keys); in
                capitals where an axis of size 1 counts for all.
        """
        if array is None:
            return None
        parts = {"b": self.rows, "h": self.heads, "q": self.queries, "k": self.keys}
        index = []
        for axis, size in zip(axes, array.shape, strict=False):
            part = parts[axis.lower()]
            whole = not part.start and part.stop in (None, size)
            index.append(ALL if whole or (axis.isupper() and size == 1) else part)
        return array if all(part == ALL for part in index) else array[tuple(index)]

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of the part of (batch, heads, queries, keys)."""
        return tuple(end - begin for begin, end in self.ends(shape))

    def ends(self, shape: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return where the slices begin and end."""
        return [
            (part.start or 0, size if part.stop is None else part.stop)
            for part, size in zip(self[:4], shape, strict=True)
        ]

    def keeps_alignment(self, shape: tuple[int, ...]) -> bool:
        """Return whether the last query of the part is at its last key, as in the whole."""
        queries, keys = self.ends(shape)[2:]
        return keys[1] - queries[1] == shape[3] - shape[2]
