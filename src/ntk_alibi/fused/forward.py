"""The forward pass on the compiled core; torch/operator.py handles autograd and vmap."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.kernel_call import attend, key_subsets
from ntk_alibi.fused.merged_parts import merged
from ntk_alibi.fused.rotated import RotatedCall, runs_of_heads


@dataclass(frozen=True)
class Stats:
    """Numbers of blocks, of 64 keys by a tile of queries, in one call of `attention`.

    Attributes:
        visited: int64 (batch, heads), blocks whose keys were read and scored.
        visible: int64 (batch, heads), blocks that the mask leaves visible.
        weighed: int64 (batch, heads), blocks of those visited whose exponentials were formed and
            whose values were read; the scores of the others proved that they do not matter. None if
            they were not counted; `attention` counts them.
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
    """Return output, logsumexp (float64; None without log) and stats (or None) of a call."""
    if call.rotates:
        return _rotated(call, log=log, stats=stats)
    subsets = key_subsets(call)
    output: Any
    logsumexp: Any
    counts = np.zeros((*call.query.shape[:2], len(fields(Stats))), np.int64) if stats else None
    if len(subsets) == 1:
        known = None if call.known is None else _arrays.as_floats(call.known, np.float64)
        output, logsumexp = attend(call, subsets[0], counts=counts, log=log, known=known)
    else:  # the subsets would both count what is known
        outputs, logs = zip(
            *(attend(call, subset, counts=counts) for subset in subsets), strict=True
        )
        tensors = [_arrays.to_framework_of(x, call.query) for x in logs]
        output, logsumexp = merged(outputs, tensors)
    if logsumexp is not None:
        logsumexp = _arrays.to_framework_of(logsumexp, call.query)
    return output, logsumexp, None if counts is None else Stats(*np.moveaxis(counts, 2, 0))


def rounded_logsumexp(logsumexp: Any, query: Any) -> Any:
    """Return a float64 logsumexp as users get it: float32, unless query is a float64 tensor.

    Finite values stay finite, since -infinity means that no key is visible.
    """
    if _arrays.wide_dtype(query) == "float64":
        return logsumexp
    xp, limit = _arrays.namespace(logsumexp), _checks.FLOAT32_MAX
    bounded = xp.where(xp.isneginf(logsumexp), logsumexp, xp.clip(logsumexp, -limit, limit))
    return _arrays.to_dtype(bounded, xp.float32)


def _rotated(call: AttentionCall, *, log: bool, stats: bool) -> tuple[Any, Any, Stats | None]:
    """Return the results of a call with rotation, some heads at a time."""
    results = [
        _rotated_heads(call.of_key_heads(heads), log=log, stats=stats)
        for heads in runs_of_heads(call)
    ]
    outputs, logs, counted = zip(*results, strict=True)
    join = _arrays.namespace(call.query).concatenate
    return (
        join(outputs, 1),
        join(logs, 1) if log else None,
        Stats(*(np.concatenate(x, 1) for x in zip(*counted, strict=True))) if stats else None,
    )


def _rotated_heads(
    call: AttentionCall, *, log: bool, stats: bool
) -> tuple[Any, Any, tuple[Any, ...] | None]:
    """Return output, logsumexp (or None), and the numbers of `Stats` in their order (or None)."""
    rotated = RotatedCall(call)
    results = [forward(part, log=log, stats=stats) for part in rotated.part_calls()]
    outputs, logs, counted = zip(*results, strict=True)
    output, logsumexp = rotated.joined(outputs, logs if log else None)
    if not stats:
        return output, logsumexp, None
    return output, logsumexp, tuple(sum(getattr(x, f.name) for x in counted) for f in fields(Stats))
