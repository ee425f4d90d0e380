"""The computation of `merge`, by the core or by operations of NumPy or torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core


def merged_in_core(
    outputs: Sequence[Any], logsumexps: Sequence[Any], out: Any = None
) -> tuple[Any, Any]:
    """Return the output, in `out` if it is given, and the float64 logsumexp; the core computes."""
    output, written = _arrays.empty_pair(outputs[0]) if out is None else (out, _arrays.storage(out))
    logs = [_arrays.as_floats(log, np.float64) for log in logsumexps]
    logsumexp = np.empty(logs[0].shape, np.float64)
    memory = [_unchanged(_arrays.storage(part), written) for part in outputs]
    _core.merge(memory, logs, written, logsumexp)
    return output, _arrays.to_framework_of(logsumexp, output)


def _unchanged(part: NDArray[Any], written: NDArray[Any]) -> NDArray[Any]:
    """Return a part, or a copy if rows of it would be written before they are read.

    The core reads a row of all parts before it writes that row, so a part may be the result itself.
    """
    same = part.ctypes.data == written.ctypes.data and part.strides == written.strides
    return part.copy() if np.may_share_memory(part, written) and not same else part


def merged_by_operations(outputs: Sequence[Any], logsumexps: Sequence[Any]) -> tuple[Any, Any]:
    """Return the output and the float64 logsumexp by operations of NumPy or torch.

    They take float64, other devices, other numbers of axes, traces and vmap.
    """
    xp = _arrays.namespace(outputs[0])
    parts = xp.stack([_arrays.float64(part, outputs[0]) for part in outputs])
    logs = xp.stack([_arrays.float64(log, outputs[0]) for log in logsumexps])
    largest = _arrays.detached(xp.amax(logs, 0))
    weights = xp.exp(logs - xp.where(xp.isneginf(largest), 0.0, largest))
    total = xp.sum(weights, 0)
    none = total == 0.0
    total = xp.where(none, 1.0, total)
    logsumexp = xp.where(none, -math.inf, largest + xp.log(total))
    weights = (weights / total)[..., None]
    output = xp.sum(xp.where(weights == 0.0, 0.0, weights * parts), 0)
    return _arrays.to_dtype(output, outputs[0].dtype), logsumexp


def fits_core(outputs: Sequence[Any], logsumexps: Sequence[Any]) -> bool:
    """Return whether the core takes these parts: four axes, one of its dtypes, main memory."""
    first = outputs[0]
    return (
        first.ndim == 4
        and _arrays.dtype_name(first.dtype) in _arrays.CORE_DTYPES
        and all(part.dtype == first.dtype for part in outputs)
        and getattr(first.dtype, "isnative", True)
        and _arrays.has_values(*outputs, *logsumexps)
        and all(_arrays.in_memory(x) for x in (*outputs, *logsumexps))
    )


def merged(outputs: Sequence[Any], logsumexps: Sequence[Any], out: Any = None) -> tuple[Any, Any]:
    """Return the output and the float64 logsumexp of checked parts whose gradient is not recorded.

    The core writes the output to `out` if it is given; operations do not.
    """
    if fits_core(outputs, logsumexps):
        return merged_in_core(outputs, logsumexps, out)
    return merged_by_operations(outputs, logsumexps)
