"""Cutting a call into parts (packed segments, heads, runs of queries) and joining their results.

The kernels do not rotate: a call with a rotary embedding becomes calls with rotated inputs. Only
XPOS needs several calls for the same heads: its factors are powers of the distance to a centre,
and each run of queries, in each segment, has its own centre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays
from ntk_alibi._backends import backend_of, promote_to_float32
from ntk_alibi._torch_state import Way
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.forward import Stats
from ntk_alibi.masks import Cut, Problem

#: Output, logsumexp and stats, of which the last two may be None.
Results: TypeAlias = tuple[Any, Any, Stats | None]

#: Axes of (batch, heads, queries), along which a call is cut.
ROWS, HEADS, QUERIES = range(3)

#: The logarithm of XPOS's fastest factor differs by at most this much between queries that share a
#: centre. A smaller value makes more calls; a larger value loosens the bounds that skipping needs.
SPREAD = 4.0

#: Heads are rotated a few at a time, so that rotated keys have about this many entries at once.
ROTATED_AT_ONCE = 2**20

#: XPOS's factors below e^-70 are set to 0, because they cannot change a float32 sum.
LEAST_LOG_FACTOR = -70.0


class Part(NamedTuple):
    """A part of a call: a packed segment, or a run of queries and the keys that they may see.

    Attributes:
        span: rows, queries and keys of the part.
        call: the call of the part, without rotation if it is a run of queries.
        query_factor: XPOS's factors of the queries, (1 or batch, 1, queries, head_dim), or None.
        key_factor: XPOS's factors of the keys, or None.
    """

    span: Cut
    call: AttentionCall
    query_factor: Any = None
    key_factor: Any = None


def compute_in_parts(call: AttentionCall, compute: Callable[[AttentionCall], Results]) -> Results:
    """Return the results of a call; `compute` computes the results of its parts."""
    of_core = call.way in (Way.CORE, Way.OPERATOR)
    if call.problem.segment_ids is not None and not of_core:
        segments = [Part(segment, call.cut(segment)) for segment in call.problem.segments()]
        if segments:
            return _compute_and_join(segments, lambda part: compute_in_parts(part, compute))
        call = call._replace(problem=call.problem._replace(segment_ids=None))  # without queries
    if call.rotary is None:
        return compute(call)
    results = []
    for some_heads in split_heads(call):
        output, *others = _compute_and_join(rotated_parts(some_heads), compute)
        results.append((backend_of(output).cast(output, call.query.dtype), *others))
    return _join(results, HEADS)


def _compute_and_join(parts: list[Part], compute: Callable[[AttentionCall], Results]) -> Results:
    """Attend to the parts of a call, ordered by rows and queries, and join their results."""
    by_row: dict[int, list[Results]] = {}
    for part in parts:
        by_row.setdefault(part.span.rows.start, []).append(compute(part.call))
    return _join([_join(runs, QUERIES) for runs in by_row.values()], ROWS)


def _join(parts: list[Any], axis: int) -> Results:
    """Join the results of parts, ordered along an axis."""
    if len(parts) == 1:
        result: Results = parts[0]
        return result
    outputs, logsumexps, stats = zip(*parts, strict=True)
    xp = backend_of(outputs[0]).xp
    output, logsumexp, counted = xp.concatenate(outputs, axis), None, None
    if logsumexps[0] is not None:
        logsumexp = xp.concatenate(logsumexps, axis)
    if stats[0] is not None:
        counts = zip(*((x.visited, x.visible, x.weighed) for x in stats), strict=True)
        counted = Stats(*(sum(x) if axis == QUERIES else np.concatenate(x, axis) for x in counts))
    return output, logsumexp, counted


def split_heads(call: AttentionCall) -> Iterator[AttentionCall]:
    """Yield calls of the heads to rotate together: all heads if torch records operations."""
    if call.way is not Way.CORE:
        yield call
        return
    batch, key_heads, keys, head_dim = call.key.shape
    count = max(ROTATED_AT_ONCE // max(batch * keys * head_dim, 1), 1)
    if count >= key_heads:
        yield call
        return
    for begin in range(0, key_heads, count):
        end, group = min(begin + count, key_heads), call.group
        yield call.cut(Cut(heads=slice(begin * group, end * group)))


def rotated_parts(call: AttentionCall) -> list[Part]:
    """Return parts with rotated inputs, float32 or float64: one part, or several with XPOS.

    The queries of a part share a centre.
    """
    rotary, problem = cast(Any, call.rotary), call.problem
    segments = problem.segments() if rotary.decays else []
    if rotary.decays and problem.traced:
        raise ValueError(
            "query_positions and key_positions must be None with XPOS where torch traces "
            f"attention, got them with {type(rotary).__name__}"
        )
    at_queries, at_keys = problem.positions(call.query)
    rotated = call.with_inputs(
        rotary.rotated(call.query, at_queries),
        rotary.rotated(call.key, at_keys),
        promote_to_float32(call.value),
        rotary=None,
    )
    batch, _, queries, keys = problem.shape
    if not rotary.decays or 0 in (batch, queries):
        return [Part(Cut(), rotated)]
    whole = Cut(slice(0, batch), queries=slice(0, queries), keys=slice(0, keys))
    parts = [(segment, rotated.cut(segment)) for segment in segments] or [(whole, rotated)]
    return [run for segment, part in parts for run in _query_runs(part, segment, rotary)]


def _query_runs(call: AttentionCall, segment: Cut, rotary: Any) -> Iterator[Part]:
    """Multiply rotated inputs by XPOS's factors and yield the runs of queries of a segment."""
    problem = call.problem
    at_queries, at_keys = problem.positions(call.query)
    positions = None if problem.query_positions is None else _arrays.to_numpy(at_queries)
    decays = rotary.log_decays(call.query)
    spread = int(min(SPREAD / rotary.fastest_rate, 2**31))
    for run, seen in split_queries(problem, positions, spread):
        part = call.cut(Cut(queries=run, keys=seen))
        factors = _factors(at_queries[:, run], at_keys[:, seen], decays, part.query.dtype)
        part = part._replace(
            query=times_factor(part.query, factors[0]), key=times_factor(part.key, factors[1])
        )
        queries, keys = (
            slice(begin.start + x.start, begin.start + x.stop)
            for begin, x in ((segment.queries, run), (segment.keys, seen))
        )
        yield Part(Cut(segment.rows, queries=queries, keys=keys), part, *factors)


def times_factor(x: Any, factor: Any) -> Any:
    """Multiply the queries or keys of a part, or their gradient, by the part's factor."""
    if factor is None:
        return x
    with backend_of(x).without_warnings():  # infinity in padding
        return x * factor


def split_queries(
    problem: Problem, positions: NDArray[Any] | None, spread: int
) -> Iterator[tuple[slice, slice]]:
    """Yield runs of queries whose positions differ by at most `spread`, with the keys they may see.

    The mask must hide keys ahead. Without positions, queries are at their columns. Keys end then
    at the column of the run's last query, and begin at column 0 if there are sinks.
    """
    mask, (queries, keys) = problem.mask, problem.shape[2:]
    begin = 0
    while begin < queries:
        end, seen = min(begin + spread + 1, queries), slice(0, keys)
        if positions is not None:
            run = positions[:, begin:end]
            reach = np.maximum.accumulate(run, 1) - np.minimum.accumulate(run, 1)
            end = begin + int((reach <= spread).all(axis=0).sum())
        else:
            last = max(keys - queries + end, 0)
            first = 0 if mask.sink else max(mask.interval(keys - queries + begin)[0], 0)
            seen = slice(min(first, last), last)
        yield slice(begin, end), seen
        begin = end


def _factors(queries: Any, keys: Any, decays: Any, dtype: Any) -> tuple[Any, Any]:
    """Return XPOS's factors of queries and of keys from their positions, (1 or batch, length)."""
    backend = backend_of(decays)
    xp = backend.xp
    first, last = xp.amin(queries, -1)[:, None], xp.amax(queries, -1)[:, None]
    centre = (first + last) // 2
    seen = xp.minimum(keys, last)  # no query sees keys ahead of all queries

    def factor(distance: Any) -> Any:
        logs = backend.cast(distance, "float64")[..., None] * decays
        powers = xp.where(
            logs < LEAST_LOG_FACTOR, 0.0, xp.exp(xp.clip(logs, LEAST_LOG_FACTOR, None))
        )
        return backend.cast(powers, dtype)[:, None]

    return factor(queries - centre), factor(centre - seen)
