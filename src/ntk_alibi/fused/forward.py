"""Attention on the compiled core."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi._backends import backend_of, readable
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.core_problem import CoreProblems
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


def compute_in_core(
    call: AttentionCall, *, log: bool = True, stats: bool = False
) -> tuple[Any, Any, Stats | None]:
    """Return output, logsumexp (float64; None without log) and stats (or None); ignore rotary."""
    counts = np.zeros((*call.query.shape[:2], len(fields(Stats))), np.int64) if stats else None
    output, logsumexp = run_core(
        call.core or call.in_core(),
        call.query,
        call.key,
        call.value,
        memory=call.memory,
        norms=call.norms,
        dropout=call.dropout,
        initial=call.initial_logsumexp,
        log=log,
        counts=counts,
    )
    return output, logsumexp, None if counts is None else Stats(*np.moveaxis(counts, 2, 0))


def run_core(
    problems: CoreProblems,
    query: Any,
    key: Any,
    value: Any,
    *,
    memory: _arrays.Memory | None = None,
    norms: Any = None,
    dropout: Dropout | None = None,
    initial: Any = None,
    log: bool = False,
    counts: NDArray[np.int64] | None = None,
) -> tuple[Any, Any]:
    """Return output and logsumexp (float64, of query's framework; None without log).

    The logsumexp is float64, because the backward pass computes weights from it.

    Args:
        problems: what `core_problems` returns; layers may share it.
        query: the queries, of the problems' shape.
        key: the keys, or `QuantizedRows`.
        value: as key.
        memory: what `find_memory` found for these, or None if it was not asked.
        norms: the `KeyNorms` of these keys, or None.
        dropout: the dropout of weights, or None.
        initial: the logsumexp over other keys, (batch, heads, queries), or None; not of use for
            two subsets of the keys, for each of which it would count.
        log: whether to return the logsumexp.
        counts: int64 (batch, heads, 3), to which the fields of `Stats` are added, or None.
    """
    if len(problems) > 1:
        inputs: Any = {"norms": norms, "dropout": dropout, "counts": counts, "log": True}
        results = [run_core((x,), query, key, value, memory=memory, **inputs) for x in problems]
        return merge_checked(*zip(*results, strict=True))
    problem, shift, _ = problems[0]
    scales = None
    if memory is None:
        memory = _arrays.find_memory(query, key, value)
    if memory is None:
        if is_quantized(key):
            scales = readable(key.scales), readable(value.scales)
            key, value = key.numbers, value.numbers
        storage = backend_of(query).storage
        memory = storage(query), storage(key), storage(value)
    written = np.empty(memory[0].shape, memory[0].dtype)
    logsumexp = np.empty(written.shape[:3], np.float64) if log else None
    _core.attention(
        problem,
        *memory,
        written,
        logsumexp,
        counts,
        None if norms is None else (norms.norms, norms.centres),
        None if initial is None else _arrays.as_floats(initial, np.float64),
        scales,
        None if dropout is None else dropout.in_core(),
    )
    output: Any = written
    if not isinstance(query, np.ndarray):
        output = sys.modules["torch"].from_numpy(written)
        if output.dtype is not query.dtype:
            output = output.view(query.dtype)  # bfloat16, which NumPy has as 16-bit integers
    if logsumexp is None:
        return output, None
    if shift is not None:
        logsumexp += shift
    return output, backend_of(query).convert(logsumexp)


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
