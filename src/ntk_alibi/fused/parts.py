"""The parts into which a call is cut, and their joined results: texts, heads, runs of queries.

The kernels know no rotations: a call with a rotary embedding becomes calls of rotated inputs. Only
XPOS needs more than one for the same heads: its factors are powers of the distance to a centre,
which differs between runs of queries, and between texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.forward import Stats
from ntk_alibi.masks import Problem, Segment

#: Output, logsumexp and stats; whatever is not asked for is None.
Results: TypeAlias = tuple[Any, Any, Stats | None]

#: Axes of (batch, heads, queries), along which a call is cut.
ROWS, HEADS, QUERIES = range(3)

#: The logarithm of XPOS's fastest factor differs by at most this much between queries that share a
#: centre. A smaller value means more calls; a larger value loosens the bounds that skipping needs.
SPREAD = 4.0

#: Heads are rotated a few at a time, so that about this many numbers of rotated keys exist at once.
ROTATED_AT_ONCE = 2**20

#: XPOS's factors below e^-70 are set to 0, since they cannot change a float32 sum.
FADED = -70.0


class Part(NamedTuple):
    """A part of a call: a text, or a run of rotated queries and the keys that they may see.

    Attributes:
        place: rows, queries and keys of the part.
        call: the call of the part.
        query_factor: XPOS's factors of the queries, (1 or batch, 1, queries, head_dim), or None.
        key_factor: those of the keys, or None.
    """

    place: Segment
    call: AttentionCall
    query_factor: Any = None
    key_factor: Any = None


def in_parts(call: AttentionCall, attend: Callable[[AttentionCall], Results]) -> Results:
    """Return the results of a call, whose parts without rotation are attended by a function."""
    if call.problem.segment_ids is not None and not call.fits_core:
        texts = [Part(text, call.for_segment(text)) for text in call.problem.segments()]
        if texts:
            return _attended(texts, lambda text: in_parts(text, attend))
        call = call._replace(problem=call.problem._replace(segment_ids=None))  # without queries
    if call.rotary is None:
        return attend(call)
    results = []
    for some_heads in runs_of_heads(call):
        output, *others = _attended(rotated_parts(some_heads), attend)
        results.append((_arrays.to_dtype(output, call.query.dtype), *others))
    return _joined(results, HEADS)


def _attended(parts: list[Part], attend: Callable[[AttentionCall], Results]) -> Results:
    """Return the results of a call from its parts, in the order of rows and queries."""
    of_rows: dict[int, list[Results]] = {}
    for part in parts:
        of_rows.setdefault(part.place.rows.start, []).append(attend(part.call))
    return _joined([_joined(runs, QUERIES) for runs in of_rows.values()], ROWS)


def _joined(parts: list[Any], axis: int) -> Results:
    """Return the results of a call from those of its parts, in their order along an axis."""
    if len(parts) == 1:
        result: Results = parts[0]
        return result
    outputs, logsumexps, stats = zip(*parts, strict=True)
    xp = _arrays.namespace(outputs[0])
    output, logsumexp, counted = xp.concatenate(outputs, axis), None, None
    if logsumexps[0] is not None:
        logsumexp = xp.concatenate(logsumexps, axis)
    if stats[0] is not None:
        numbers = zip(*((x.visited, x.visible, x.weighed) for x in stats), strict=True)
        counted = Stats(*(sum(x) if axis == QUERIES else np.concatenate(x, axis) for x in numbers))
    return output, logsumexp, counted


def runs_of_heads(call: AttentionCall) -> Iterator[AttentionCall]:
    """Yield the calls of heads to rotate together: all where torch keeps what it records."""
    batch, key_heads, keys, head_dim = call.key.shape
    count = max(ROTATED_AT_ONCE // max(batch * keys * head_dim, 1), 1)
    if call.rule is None or count >= key_heads:
        yield call
        return
    for begin in range(0, key_heads, count):
        yield call.for_key_heads(slice(begin, min(begin + count, key_heads)))


def rotated_parts(call: AttentionCall) -> list[Part]:
    """Return the parts of a call with rotation, whose calls have none: one, or several with XPOS.

    Queries of a part share a centre. Their calls are float32 or float64.
    """
    rotary, problem = cast(Any, call.rotary), call.problem
    texts = problem.segments() if rotary.decays else []
    if rotary.decays and problem.traced:
        raise ValueError(
            "query_positions and key_positions must be None with XPOS where torch traces "
            f"attention, got them with {rotary!r}"
        )
    of_queries, of_keys = problem.positions(call.query)
    rotated = call.of_inputs(
        rotary.rotated(call.query, of_queries),
        rotary.rotated(call.key, of_keys),
        _arrays.promote_to_float32(call.value),
        rotary=None,
    )
    batch, _, queries, keys = problem.shape
    whole = Segment(slice(0, batch), slice(0, queries), slice(0, keys))
    if not rotary.decays or 0 in (batch, queries):
        return [Part(whole, rotated)]
    if not texts:
        return list(_query_runs(rotated, whole, rotary))
    return [run for text in texts for run in _query_runs(rotated.for_segment(text), text, rotary)]


def _query_runs(call: AttentionCall, text: Segment, rotary: Any) -> Iterator[Part]:
    """Yield the runs of queries of a text, rotated but not yet faded, in order."""
    problem = call.problem
    of_queries, of_keys = problem.positions(call.query)
    positions = None if problem.query_positions is None else _arrays.to_numpy(of_queries)
    decays = rotary.log_decays(call.query)
    for own, seen in _slices(problem, positions, int(min(SPREAD / rotary.fastest_rate, 2**31))):
        part = call.part(own, seen)
        factors = _factors(of_queries[:, own], of_keys[:, seen], decays, part.query.dtype)
        part = part._replace(query=faded(part.query, factors[0]), key=faded(part.key, factors[1]))
        at = (
            slice(begin.start + x.start, begin.start + x.stop)
            for begin, x in ((text.queries, own), (text.keys, seen))
        )
        yield Part(Segment(text.rows, *at), part, *factors)


def faded(x: Any, factor: Any) -> Any:
    """Multiply rotated queries or keys of a run, or their gradient, by a factor of `Part`."""
    if factor is None:
        return x
    with _arrays.without_warnings(x):  # infinity in padding
        return x * factor


def _slices(
    problem: Problem, positions: NDArray[Any] | None, spread: int
) -> Iterator[tuple[slice, slice]]:
    """Yield queries, whose positions differ by at most a spread in all rows, and their keys.

    Without positions, those of the queries are their columns. Then the keys end at the column of
    the last query, and begin at column 0, where sinks stand, if there are any.
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
    xp = _arrays.namespace(decays)
    first, last = xp.amin(queries, -1)[:, None], xp.amax(queries, -1)[:, None]
    centre = (first + last) // 2
    seen = xp.minimum(keys, last)  # no query sees keys ahead of all queries

    def factor(distance: Any) -> Any:
        logs = _arrays.to_float64(distance)[..., None] * decays
        powers = xp.where(logs < FADED, 0.0, xp.exp(xp.clip(logs, FADED, None)))
        return _arrays.to_dtype(powers, dtype)[:, None]

    return factor(queries - centre), factor(centre - seen)
