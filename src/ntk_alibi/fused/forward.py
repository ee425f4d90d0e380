"""Attention on the compiled core, for all keys or for two subsets of them.

With exempt tokens there are two subsets: the exempt keys and the other keys. Scores of exempt keys,
and all scores of exempt queries, have no slope but a constant for each query. Within one call of
the core the constant does not change the softmax, so it is added to the logsumexp afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi._backends import backend_of, empty_pair, readable
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.dropout import Dropout
from ntk_alibi.fused.merge import merge_checked
from ntk_alibi.fused.quantized_rows import is_quantized


@dataclass(frozen=True)
class Stats:
    """Counts of blocks, of 64 keys by a tile of queries, in one call of `attention`.

    Attributes:
        visited: int64 (batch, heads), blocks whose keys were read and scored.
        visible: int64 (batch, heads), blocks that the mask leaves visible.
        weighed: int64 (batch, heads), visited blocks whose weights were computed and whose values
            were read; the scores of the other visited blocks proved that these do not matter. None
            if not counted; `attention` counts them.
    """

    visited: NDArray[np.int64]
    visible: NDArray[np.int64]
    weighed: NDArray[np.int64] | None = None

    @property
    def share(self) -> NDArray[np.float64]:
        """The visited share of visible blocks, (batch, heads); 1 if no block is visible."""
        share: NDArray[np.float64] = np.where(
            self.visible == 0, 1.0, self.visited / np.maximum(self.visible, 1)
        )
        return share


def forward(
    call: AttentionCall, *, log: bool = True, stats: bool = False
) -> tuple[Any, Any, Stats | None]:
    """Return output, logsumexp (float64; None without log) and stats (or None); ignore rotary."""
    subsets = key_subsets(call)
    counts = np.zeros((*call.query.shape[:2], len(fields(Stats))), np.int64) if stats else None
    if len(subsets) == 1:
        output, logsumexp = attend_subset(call, subsets[0], counts=counts, log=log)
    else:
        call = without_initial(call)
        results = [attend_subset(call, subset, counts=counts) for subset in subsets]
        output, logsumexp = merge_checked(*zip(*results, strict=True))
    return output, logsumexp, None if counts is None else Stats(*np.moveaxis(counts, 2, 0))


class KeySubset(NamedTuple):
    """A subset of the keys, and its bias.

    Attributes:
        bias: the bias as the core's object.
        mask: (batch, keys), 1 for the keys of the subset, or None for all.
        shift: added to the subset's logsumexp, (1 or batch, heads, 1 or queries), or None.
        exempt: whether these are the exempt keys.
    """

    bias: _core.AttentionBias
    mask: NDArray[np.uint8] | None
    shift: NDArray[np.float32] | None = None
    exempt: bool = False


def key_subsets(call: AttentionCall) -> list[KeySubset]:
    """Return one subset with all keys, or two: the exempt keys and the others."""
    bias, problem = call.bias, call.problem
    mask = problem.key_padding_mask
    if not bias.exempt:
        return [KeySubset(bias.core or bias.in_core(problem.shape), mask)]
    batch, heads, _, keys = problem.shape
    exempt = problem.positions()[1] < bias.exempt
    real = np.ones((batch, keys), np.bool_) if mask is None else mask.astype(np.bool_)
    rows, zero = exempt_queries(call), np.float32(0)
    flat = {n: np.where(np.isinf(side), side, zero) for n, side in bias.slopes.items()}
    sloped = {n: np.where(rows & ~np.isinf(side), zero, side) for n, side in bias.slopes.items()}
    flat_bias, sloped_bias = (
        bias._replace(**slopes, core=None).in_core(problem.shape) for slopes in (flat, sloped)
    )
    shifts: list[Any] = [None, None]
    if bias.first is not None:
        first = np.broadcast_to(bias.first[None, :, None], (batch, heads, 1))
        shifts = [np.where(shifted, -first, zero) for shifted in shifted_queries(call)]
    return [
        KeySubset(flat_bias, (real & exempt).view(np.uint8), shifts[0], True),
        KeySubset(sloped_bias, (real & ~exempt).view(np.uint8), shifts[1]),
    ]


def exempt_queries(call: AttentionCall) -> NDArray[np.bool_]:
    """Return which queries are exempt, (1 or batch, 1, queries) bool."""
    exempt: NDArray[np.bool_] = (call.problem.positions()[0] < call.bias.exempt)[:, None]
    return exempt


def shifted_queries(call: AttentionCall) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the queries whose scores `first` lowers: with the first key, and with other keys.

    The first token's score with itself has no constant. Queries before the first token, which exist
    if there are more queries than keys, have it with all keys.
    """
    itself: NDArray[np.bool_] = (call.problem.positions()[0] == 0)[:, None]
    return ~itself, exempt_queries(call)


def without_initial(call: AttentionCall) -> AttentionCall:
    """Return the call for one of several subsets, in each of which `initial` would count."""
    return call._replace(initial_logsumexp=None, memory=None)  # memory has one output


def attend_subset(
    call: AttentionCall,
    subset: KeySubset,
    *,
    counts: NDArray[np.int64] | None = None,
    log: bool = True,
) -> tuple[Any, Any]:
    """Return output and logsumexp (None without log) over a subset of the keys.

    The logsumexp is float64, because the backward pass computes weights from it.
    """
    output, logsumexp = attend_in_core(
        subset.bias,
        call.rule,
        core_tokens(call, subset),
        call.query,
        call.key,
        call.value,
        memory=call.memory,
        norms=call.norms,
        dropout=call.dropout,
        log=log,
        counts=counts,
        initial_logsumexp=call.initial_logsumexp,
    )
    if logsumexp is not None and subset.shift is not None:
        logsumexp += backend_of(output).convert(subset.shift)
    return output, logsumexp


def attend_in_core(
    bias: _core.AttentionBias,
    rule: _core.CallRule,
    tokens: _core.Tokens | None,
    query: Any,
    key: Any,
    value: Any,
    *,
    memory: _arrays.CallMemory | None = None,
    norms: Any = None,
    dropout: Dropout | None = None,
    log: bool = False,
    counts: NDArray[np.int64] | None = None,
    initial_logsumexp: Any = None,
) -> tuple[Any, Any]:
    """Call the core, and return output and logsumexp (float64, of query's framework, or None).

    What does not depend on query, key and value comes first: calls may share it.
    """
    scales = None
    if memory is None:
        memory = _arrays.find_memory(query, key, value)
    if memory is None:
        if is_quantized(key):
            scales = _core.KeyScales(*map(readable, (key.scales, value.scales)))
            key, value = key.numbers, value.numbers
        storage = backend_of(query).storage
        output, written = empty_pair(query)
        memory = _arrays.CallMemory(storage(query), storage(key), storage(value), written, output)
    logsumexp = np.empty(memory.written.shape[:3], np.float64) if log else None
    if initial_logsumexp is not None:
        initial_logsumexp = _arrays.as_floats(initial_logsumexp, np.float64)
    _core.attention(
        memory.query,
        memory.key,
        memory.value,
        bias,
        rule,
        tokens,
        memory.written,
        logsumexp,
        counts,
        None if norms is None else (norms.norms, norms.centres),
        initial_logsumexp,
        scales,
        None if dropout is None else dropout.in_core(),
    )
    if logsumexp is None:
        return memory.output, None
    return memory.output, backend_of(query).convert(logsumexp)


def core_tokens(call: AttentionCall, subset: KeySubset) -> _core.Tokens | None:
    """Return positions, mask, factors and segments as the core's object, or None without them."""
    queries, keys = call.problem.query_positions, call.problem.key_positions
    factors, visible = call.factors, call.problem.visible
    if queries is keys is subset.mask is factors is visible is None:
        return None
    segments = None
    if call.problem.segment_ids is not None:
        columns = ((x.rows, x.queries, x.keys) for x in call.problem.segments())
        bounds = [(x.start, x.stop) for segment in columns for x in segment]
        segments = np.array(bounds, np.int64).reshape(-1, 6)
    pairs = None if visible is None else visible.in_core()
    return _core.Tokens(queries, keys, subset.mask, factors, pairs, segments)


def rounded_logsumexp(logsumexp: Any, query: Any) -> Any:
    """Round a float64 logsumexp to float32 for users, unless query is a float64 tensor.

    Finite values stay finite, because -infinity means that no key is visible.
    """
    if _arrays.wide_dtype(query) == "float64":
        return logsumexp
    backend, limit = backend_of(logsumexp), _checks.FLOAT32_MAX
    xp = backend.xp
    bounded = xp.where(xp.isneginf(logsumexp), logsumexp, xp.clip(logsumexp, -limit, limit))
    return backend.cast(bounded, "float32")
