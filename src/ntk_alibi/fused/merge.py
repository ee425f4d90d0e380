"""Joining results of attention over disjoint sets of keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi._arrays import ArrayT
from ntk_alibi._backends import backend_of, empty_pair
from ntk_alibi._torch_state import Way, has_values, is_followed, is_recorded, way_of


def merge(
    outputs: Sequence[ArrayT],
    logsumexps: Sequence[ArrayT],
    *,
    out: tuple[ArrayT, ArrayT] | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Join results of `attention` over disjoint sets of keys into the result over all of them.

    Formula::

        logsumexp = log sum_c exp(logsumexp_c)
        output = sum_c exp(logsumexp_c - logsumexp) output_c

    Args:
        outputs: a list with at least one output, (batch, heads, queries, head_dim).
        logsumexps: the logsumexp of each output, (batch, heads, queries).
        out: buffers (output, logsumexp) with the result's shapes and dtypes, which are filled and
            returned; they may be one of the parts.

    Returns:
        (output, logsumexp), computed in float64, with the framework and dtypes of the first output
        and the first logsumexp; 0 and -inf for queries that see no key. Tensors may require grad
        without `out`.

    Raises:
        TypeError: an entry is not an array or a tensor, or the frameworks differ.
        ValueError: the lists differ in length or shapes; `out` has the wrong shapes or dtypes, or
            is given although torch records gradients.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 2, 6, 8), np.float32)
        >>> positions = np.arange(6)
        >>> parts = [
        ...     na.attention(
        ...         query, key[:, :, part], value[:, :, part], query_positions=positions,
        ...         key_positions=positions[part], return_logsumexp=True)
        ...     for part in (slice(0, 2), slice(2, 6))
        ... ]
        >>> whole, _ = na.merge(*zip(*parts))
        >>> bool(np.allclose(whole, na.attention(query, key, value), atol=1e-6))
        True

    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867).
    """
    for name, arrays in (("outputs", outputs), ("logsumexps", logsumexps)):
        for array in arrays if isinstance(arrays, Sequence) else ():
            _checks.check_plain(name, array)
        if not isinstance(arrays, Sequence) or not all(map(_arrays.is_array, arrays)):
            raise TypeError(
                f"{name} must be a list or a tuple of arrays, got {_checks.briefly(arrays)}"
            )
    if len(outputs) != len(logsumexps) or not outputs:
        raise ValueError(
            "outputs and logsumexps must have the same length, at least 1, got "
            f"{len(outputs)} and {len(logsumexps)}"
        )
    first = outputs[0]
    shapes = tuple(first.shape), tuple(first.shape)[:-1]
    for name, arrays, shape in zip(
        ("outputs", "logsumexps"), (outputs, logsumexps), shapes, strict=True
    ):
        for array in arrays:
            if tuple(array.shape) != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(array.shape)}")
            if not backend_of(first).holds(array):
                raise TypeError(
                    f"{name} must all be arrays or all be tensors, got {type(array).__name__} and "
                    f"{type(first).__name__}"
                )
    if out is not None:
        if is_followed(*outputs, *logsumexps):
            raise ValueError("out must be None where torch records gradients of the parts")
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(f"out must be a pair (output, logsumexp), got {_checks.briefly(out)}")
        for buffer, like in zip(out, (first, logsumexps[0]), strict=True):
            dtype = _arrays.dtype_name(like.dtype)
            _checks.out(buffer, tuple(like.shape), dtype, backend_of(like))
    output, logsumexp = merge_checked(outputs, logsumexps, None if out is None else out[0])
    rounded: Any = backend_of(logsumexp).cast(logsumexp, logsumexps[0].dtype)
    if out is None:
        return output, rounded
    for buffer, result in zip(out, (output, rounded), strict=True):
        if result is not buffer:
            buffer[...] = result
    return out


def merge_checked(
    outputs: Sequence[Any], logsumexps: Sequence[Any], out: Any = None
) -> tuple[Any, Any]:
    """Return the merged output and the float64 logsumexp of checked parts.

    The core computes if it can, and writes the output to `out` if given. Otherwise operations of
    NumPy or torch compute, which ignore `out`.
    """
    first, parts = outputs[0], (*outputs, *logsumexps)
    way = way_of(*parts, name="outputs")
    in_core = (
        way in (Way.CORE, Way.OPERATOR)
        and first.ndim == 4
        and _arrays.dtype_name(first.dtype) in _arrays.CORE_DTYPES
        and all(output.dtype == first.dtype for output in outputs)
        and getattr(first.dtype, "isnative", True)
        and has_values(*parts)
        and all(backend_of(x).in_main_memory for x in parts)
    )
    if in_core and is_recorded(*parts):
        # Imported here because torch is optional.
        from ntk_alibi.fused.tensors.merging import merged_tensors

        return merged_tensors(_merge_in_core, outputs, logsumexps)
    if in_core:
        return _merge_in_core(outputs, logsumexps, out)

    # float64, other devices, other shapes, traces and vmap.
    backend = backend_of(first)
    xp = backend.xp
    values = xp.stack([backend.convert(output, "float64") for output in outputs])
    logs = xp.stack([backend.convert(log, "float64") for log in logsumexps])
    largest = backend.detached(xp.amax(logs, 0))
    weights = xp.exp(logs - xp.where(xp.isneginf(largest), 0.0, largest))
    total = xp.sum(weights, 0)
    none = total == 0.0
    total = xp.where(none, 1.0, total)
    logsumexp = xp.where(none, -math.inf, largest + xp.log(total))
    weights = (weights / total)[..., None]
    output = xp.sum(xp.where(weights == 0.0, 0.0, weights * values), 0)
    return backend.cast(output, first.dtype), logsumexp


def _merge_in_core(
    outputs: Sequence[Any], logsumexps: Sequence[Any], out: Any = None
) -> tuple[Any, Any]:
    """Return the output, in `out` if given, and the float64 logsumexp, computed by the core."""
    backend = backend_of(outputs[0])
    output, written = empty_pair(outputs[0]) if out is None else (out, backend.storage(out))
    logs = [_arrays.as_floats(log, np.float64) for log in logsumexps]
    logsumexp = np.empty(logs[0].shape, np.float64)
    memory = [_copy_if_overwritten(backend.storage(part), written) for part in outputs]
    _core.merge(memory, logs, written, logsumexp)
    return output, backend.convert(logsumexp)


def _copy_if_overwritten(part: NDArray[Any], written: NDArray[Any]) -> NDArray[Any]:
    """Return a part, or a copy if the core would overwrite rows before it reads them.

    The core reads a row of all parts before it writes that row, so a part may be the result itself.
    """
    same = part.ctypes.data == written.ctypes.data and part.strides == written.strides
    return part.copy() if np.may_share_memory(part, written) and not same else part
