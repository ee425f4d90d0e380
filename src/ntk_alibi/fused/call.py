"""A checked call of attention, and the parts into which it is cut: texts, heads, runs of queries.

The kernels know no rotations: a call with a rotary embedding becomes calls of rotated inputs. Only
XPOS needs more than one for the same heads: its factors are powers of the distance to a centre,
which differs between runs of queries.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.fused.dropout import Dropout
from ntk_alibi.masks import Mask, Problem
from ntk_alibi.masks.segments import Text, of_rows
from ntk_alibi.positions.rotary import XPOS, RoPE

#: The logarithm of XPOS's fastest factor differs by at most this much between queries that share a
#: centre. A smaller value means more calls; a larger value loosens the bounds that skipping needs.
SPREAD = 4.0

#: Heads are rotated a few at a time, so that about this many numbers of rotated keys exist at once.
ROTATED_AT_ONCE = 2**20

#: XPOS's factors below e^-70 are set to 0, since they cannot change a float32 sum.
FADED = -70.0


class AttentionCall(NamedTuple):
    """A checked call of attention, which every way to attend takes.

    Attributes:
        query: (batch, heads, queries, head_dim), array or tensor.
        key: (batch, key heads, keys, head_dim).
        value: (batch, key heads, keys, head_dim).
        bias: of NumPy numbers, or of tensors that autograd follows.
        problem: shape, mask and positions.
        rule: mask, scale and tolerance as the core takes them; None if torch's operator computes.
        scale: factor of the dot products.
        skip_tolerance: the argument of `attention`.
        rotary: rotary embedding that is not applied yet, or None.
        factors: factors of the dot products besides the scale, (1 or batch, 1 or heads, queries),
            in the bias's framework, or None.
        known: logsumexps over other keys, (batch, heads, queries) float64, which count as read when
            keys are skipped, or None.
        memory: the storage of query, key and value if it is known, else None.
        norms: norms and centres of a `KeyNorms` of these keys, or None.
        dropout: the dropout of weights, or None.
    """

    query: Any
    key: Any
    value: Any
    bias: KernelBias
    problem: Problem
    rule: Any
    scale: float
    skip_tolerance: float | None
    rotary: RoPE | XPOS | None = None
    factors: Any = None
    known: Any = None
    memory: Any = None
    norms: Any = None
    dropout: Dropout | None = None

    @property
    def rotates(self) -> bool:
        """True if queries and keys have to be rotated first."""
        return self.rotary is not None

    @property
    def fades(self) -> bool:
        """True if factors of XPOS, which fall with the distance, are not applied yet."""
        return self.rotary is not None and self.rotary.fades

    def of_inputs(self, query: Any, key: Any, value: Any, **others: Any) -> AttentionCall:
        """Return the call with other inputs, and other fields by their names."""
        return self._replace(query=query, key=key, value=value, memory=None, norms=None, **others)

    def of_key_heads(self, heads: slice) -> AttentionCall:
        """Return the call of some heads of keys, and of the heads of queries that read them."""
        batch, query_heads, *lengths = self.problem.shape
        group = query_heads // max(self.key.shape[1], 1)
        own = slice(heads.start * group, heads.stop * group)
        query, factors = self.query[:, own], self.factors
        return self.of_inputs(
            query,
            self.key[:, heads],
            self.value[:, heads],
            bias=self.bias.of_heads(own),
            problem=self.problem._replace(shape=(batch, query.shape[1], *lengths)),
            factors=factors if factors is None or factors.shape[1] == 1 else factors[:, own],
            known=None if self.known is None else self.known[:, own],
            dropout=self.dropout and self.dropout.part(head=own.start),
        )

    def part(self, queries: slice, keys: slice) -> AttentionCall:
        """Return the call of some queries and some keys."""
        return self.of_inputs(
            self.query[:, :, queries],
            self.key[:, :, keys],
            self.value[:, :, keys],
            bias=self.bias.part(queries, keys, self.problem),
            problem=self.problem.part(queries, keys),
            factors=None if self.factors is None else self.factors[:, :, queries],
            known=None if self.known is None else self.known[:, :, queries],
            dropout=self.dropout and self.dropout.part(query=queries.start, key=keys.start),
        )

    def of_text(self, text: Text) -> AttentionCall:
        """Return the call of one text alone."""
        rows, queries, keys = text
        by_query = self.factors, self.known
        factors, known = (x if x is None else of_rows(x, rows)[:, :, queries] for x in by_query)
        return self.of_inputs(
            self.query[rows, :, queries],
            self.key[rows, :, keys],
            self.value[rows, :, keys],
            bias=self.bias.of_text(text),
            problem=text.problem(self.problem),
            factors=factors,
            known=known,
            dropout=self.dropout and self.dropout.part(rows.start, 0, queries.start, keys.start),
        )


@functools.lru_cache(maxsize=256)
def core_rule(mask: Mask, scale: float, skip_tolerance: float | None) -> _core.CallRule:
    """Return a mask, a scale and a tolerance as the core takes them."""
    return _core.CallRule(scale, skip_tolerance, mask.numbers())


class QueryRun(NamedTuple):
    """A run of queries, and the keys that they may see, as a call without rotation.

    Attributes:
        queries: the queries, which share a centre with XPOS.
        keys: the keys.
        call: the call of the rotated queries and keys, in float32 or float64.
        query_factor: XPOS's factors of the queries, (1 or batch, 1, queries, head_dim), or None.
        key_factor: those of the keys, or None.
    """

    queries: slice
    keys: slice
    call: AttentionCall
    query_factor: Any = None
    key_factor: Any = None


def parts_of(
    call: AttentionCall,
) -> Iterator[tuple[tuple[slice, slice, slice], AttentionCall]]:
    """Yield the parts of a call with rotation: rows, heads and queries, and the call of these."""
    if call.fades and call.problem.segments is not None:
        for text in call.problem.texts():
            yield (text.rows, slice(None), text.queries), call.of_text(text)
        return
    for heads, of_heads in runs_of_heads(call):
        for run in query_runs(of_heads):
            yield (slice(None), heads, run.queries), run.call


def runs_of_heads(call: AttentionCall) -> Iterator[tuple[slice, AttentionCall]]:
    """Yield the heads to rotate together, in order, and the call of these heads."""
    batch, key_heads, keys, head_dim = call.key.shape
    group = call.query.shape[1] // max(key_heads, 1)
    count = max(ROTATED_AT_ONCE // max(batch * keys * head_dim, 1), 1)
    for begin in range(0, max(key_heads, 1), count):
        end = min(begin + count, key_heads)
        yield slice(begin * group, end * group), call.of_key_heads(slice(begin, end))


def query_runs(call: AttentionCall) -> list[QueryRun]:
    """Return the runs of queries of a call with rotation, in order: one, or several with XPOS."""
    rotary, problem = cast(Any, call.rotary), call.problem
    if rotary.fades and problem.traced:
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
    queries, keys = problem.shape[2:]
    if not rotary.fades or queries == 0:
        return [QueryRun(slice(0, queries), slice(0, keys), rotated)]
    columns = problem.query_positions is None
    positions = None if columns else _arrays.to_numpy(of_queries)
    decays = rotary.log_decays(call.query)
    runs = []
    for own, seen in _slices(problem, positions, int(min(SPREAD / rotary.fastest_rate, 2**31))):
        part = rotated.part(own, seen)
        factors = _factors(of_queries[:, own], of_keys[:, seen], decays, part.query.dtype)
        part = part._replace(query=faded(part.query, factors[0]), key=faded(part.key, factors[1]))
        runs.append(QueryRun(own, seen, part, *factors))
    return runs


def faded(x: Any, factor: Any) -> Any:
    """Multiply rotated queries or keys of a run, or their gradient, by a factor of `QueryRun`."""
    if factor is None:
        return x
    with _arrays.quiet(x):  # infinity in padding
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
