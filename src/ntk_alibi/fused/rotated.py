"""Calls with rotary embeddings, as calls of rotated inputs.

The kernels know no rotations. Only XPOS needs more than one call: its factors are powers of the
distance to a centre, which differs between runs of queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ntk_alibi import _arrays
from ntk_alibi.fused.call import AttentionCall

#: The logarithm of XPOS's fastest factor differs by at most this much between queries that share a
#: centre. A smaller value means more calls; a larger value loosens the bounds that skipping needs.
SPREAD = 4.0

#: Heads are rotated a few at a time, so that about this many numbers of rotated keys exist at once.
ROTATED_AT_ONCE = 2**20

#: XPOS's factors below e^-70 are set to 0, since they cannot change a float32 sum.
FADED = -70.0


def runs_of_heads(call: AttentionCall) -> Iterator[slice]:
    """Yield the heads of keys to rotate together, in order."""
    batch, heads, keys, head_dim = call.key.shape
    count = max(ROTATED_AT_ONCE // max(batch * keys * head_dim, 1), 1)
    for begin in range(0, max(heads, 1), count):
        yield slice(begin, min(begin + count, heads))


@dataclass(frozen=True, slots=True)
class QueryRun:
    """Queries that share a centre, the keys that they may see, and the factors of both."""

    queries: slice
    keys: slice
    query_factor: Any = None
    key_factor: Any = None

    def fade_query(self, x: Any) -> Any:
        """Multiply rotated queries of the run, or their gradient, by their factors."""
        return _times(x, self.query_factor)

    def fade_key(self, x: Any) -> Any:
        """Multiply rotated keys of the run, or their gradient, by their factors."""
        return _times(x, self.key_factor)


class RotatedCall:
    """A call with rotation, split into calls without it.

    Attributes:
        runs: the runs of queries, in order; each becomes a call.
    """

    def __init__(self, call: AttentionCall) -> None:
        self._call = call
        self._rotary = cast(Any, call.rotary)
        self._fades = self._rotary.fades
        if self._fades and call.problem.traced:
            raise ValueError(
                "query_positions and key_positions must be None with XPOS where torch traces "
                f"attention, got them with {call.rotary!r}"
            )
        self._positions = call.problem.positions(call.query)
        self.runs = list(self._query_runs())

    def part_calls(self) -> list[AttentionCall]:
        """Return one call for each run, of rotated inputs in float32 or float64."""
        call = self._call
        rotated = call.of_inputs(
            self.rotate_query(call.query),
            self.rotate_key(call.key),
            _arrays.promote_to_float32(call.value),
            rotary=None,
        )
        return [self._part_call(rotated, run) for run in self.runs]

    def _part_call(self, rotated: AttentionCall, run: QueryRun) -> AttentionCall:
        part = rotated.part(run.queries, run.keys)
        return part._replace(query=run.fade_query(part.query), key=run.fade_key(part.key))

    def joined(self, outputs: Sequence[Any], logsumexps: Sequence[Any] | None) -> tuple[Any, Any]:
        """Return output and logsumexp of the whole call, from those of the runs."""
        xp = _arrays.namespace(self._call.query)
        output = _arrays.to_dtype(xp.concatenate(outputs, 2), self._call.query.dtype)
        return output, None if logsumexps is None else xp.concatenate(logsumexps, 2)

    def rotate_query(self, query: Any, *, back: bool = False) -> Any:
        """Rotate queries; back=True applies the transpose, for gradients."""
        return self._rotary.rotated(query, self._positions[0], back=back)

    def rotate_key(self, key: Any, *, back: bool = False) -> Any:
        """Rotate keys; back=True applies the transpose, for gradients."""
        return self._rotary.rotated(_arrays.promote_to_float32(key), self._positions[1], back=back)

    def _query_runs(self) -> Iterator[QueryRun]:
        queries, keys = self._call.problem.shape[2:]
        if not self._fades:
            yield QueryRun(slice(0, queries), slice(0, keys))
            return
        for begin, end in self._bounds():
            seen = slice(0, keys)
            if self._call.problem.query_positions is None:
                seen = self._seen(begin, end)
            yield QueryRun(slice(begin, end), seen, *self._factors(slice(begin, end), seen))

    def _bounds(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of the runs, whose positions differ by little in all rows."""
        queries = self._call.problem.shape[2]
        spread = int(min(SPREAD / self._rotary.fastest_rate, 2**31))
        default = self._call.problem.query_positions is None
        rows = None if default else _arrays.to_numpy(self._positions[0])
        begin = 0
        while begin < queries or begin == 0:
            end = min(begin + spread + 1, queries)
            if rows is not None:
                run = rows[:, begin:end]
                reach = np.maximum.accumulate(run, 1) - np.minimum.accumulate(run, 1)
                end = begin + int((reach <= spread).all(axis=0).sum())
            yield begin, end
            begin = max(end, 1)

    def _seen(self, begin: int, end: int) -> slice:
        """Return the columns that queries may see, which end at the last query's column.

        They begin at column 0, where sinks stand, if there are any.
        """
        mask, (queries, keys) = self._call.problem.mask, self._call.problem.shape[2:]
        first, ends = keys - queries + begin, max(keys - queries + end, 0)
        if mask.sink:
            return slice(0, ends)
        begins = max(mask.interval(first)[0], 0)
        return slice(min(begins, ends), ends)

    def _factors(self, queries: slice, keys: slice) -> tuple[Any, Any]:
        """Return XPOS's factors of queries and of keys, (1 or batch, 1, length, head_dim)."""
        example = self._call.query
        xp = _arrays.namespace(example)
        q, k = self._positions[0][:, queries], self._positions[1][:, keys]
        if q.shape[1] == 0:
            return None, None
        first, last = xp.amin(q, -1)[:, None], xp.amax(q, -1)[:, None]
        centre = (first + last) // 2
        k = xp.minimum(k, last)  # no query sees keys ahead of all queries
        decays = self._rotary.log_decays(example)

        def factor(distance: Any) -> Any:
            logs = _arrays.to_float64(distance)[..., None] * decays
            powers = xp.where(logs < FADED, 0.0, xp.exp(xp.clip(logs, FADED, None)))
            return _arrays.to_dtype(powers, _arrays.promote_to_float32(example).dtype)[:, None]

        return factor(q - centre), factor(centre - k)


def _times(x: Any, factor: Any) -> Any:
    if factor is None:
        return x
    with _arrays.quiet(x):  # infinity in padding
        return x * factor
