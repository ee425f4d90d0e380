"""Join results of attention over disjoint sets of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ntk_alibi import _arrays, _checks, _torch_state
from ntk_alibi._arrays import ArrayT
from ntk_alibi.fused.merged_parts import fits_core, merged


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
        outputs: at least one, each (batch, heads, queries, head_dim).
        logsumexps: one for each output, (batch, heads, queries).
        out: an output and a logsumexp that get the result, of its shapes and dtypes; they may be
            those of a part.

    Returns:
        (output, logsumexp), computed in float64, with framework and dtype of the first output and
        the first logsumexp; 0 and -inf for queries that see no key. Tensors may require grad
        without `out`.

    Raises:
        TypeError, ValueError: the lists differ in length, shapes or framework; `out` does not fit,
            or is given where torch records gradients of the parts.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 2, 6, 8), np.float32)
        >>> positions = np.arange(6)
        >>> parts = [
        ...     na.attention(query, key[:, :, part], value[:, :, part], query_positions=positions,
        ...                  key_positions=positions[part], return_logsumexp=True)
        ...     for part in (slice(0, 2), slice(2, 6))
        ... ]
        >>> whole, _ = na.merge(*zip(*parts))
        >>> bool(np.allclose(whole, na.attention(query, key, value), atol=1e-6))
        True

    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867).
    """
    for name, arrays in (("outputs", outputs), ("logsumexps", logsumexps)):
        if not isinstance(arrays, Sequence) or not all(map(_arrays.is_array, arrays)):
            raise TypeError(f"{name} must be a list or a tuple of arrays, got {arrays!r}")
        for array in arrays:
            _checks.plain(name, array)
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
            if _arrays.is_tensor(array) != _arrays.is_tensor(first):
                raise TypeError(
                    f"{name} must all be arrays or all be tensors, got {type(array).__name__} and "
                    f"{type(first).__name__}"
                )
    for part in zip(outputs, logsumexps, strict=True):
        _checks.no_tangents(outputs=part[0], logsumexps=part[1])
    recorded = _arrays.require_grad(*outputs, *logsumexps) and _torch_state.is_recording()
    if out is not None:
        if recorded:
            raise ValueError("out must be None where torch records gradients of the parts")
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(f"out must be a pair (output, logsumexp), got {out!r}")
        for buffer, like in zip(out, (first, logsumexps[0]), strict=True):
            dtype, tensor = _arrays.dtype_name(like.dtype), _arrays.is_tensor(like)
            _checks.out(buffer, tuple(like.shape), dtype, torch=tensor)
    parts: Any = outputs, logsumexps
    output: Any
    logsumexp: Any
    if recorded and fits_core(*parts):
        # Imported here, since torch is optional; it is loaded if there is a tensor.
        from ntk_alibi.torch.merging import merged_tensors

        output, logsumexp = merged_tensors(*parts)
    else:
        output, logsumexp = merged(outputs, logsumexps, None if out is None else out[0])
    logsumexp = _arrays.to_dtype(logsumexp, logsumexps[0].dtype)
    if out is None:
        return output, logsumexp
    for buffer, result in zip(out, (output, logsumexp), strict=True):
        if result is not buffer:
            buffer[...] = result
    return out
