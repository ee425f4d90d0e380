"""Join results of attention over disjoint sets of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ntk_alibi import _arrays, _checks, _torch_state
from ntk_alibi._arrays import ArrayT
from ntk_alibi.fused import checks, merged_parts


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
    checks.parts(outputs, logsumexps)
    for part in zip(outputs, logsumexps, strict=True):
        _checks.no_tangents(outputs=part[0], logsumexps=part[1])
    recorded = _arrays.require_grad(*outputs, *logsumexps) and _torch_state.is_recording()
    if out is not None:
        checks.merge_buffers(out, outputs[0], logsumexps[0], recorded=recorded)
    parts: Any = outputs, logsumexps
    output: Any
    logsumexp: Any
    if recorded and merged_parts.fits_core(*parts):
        # Imported here, since torch is optional; it is loaded if there is a tensor.
        from ntk_alibi.torch.merging import merged_tensors

        output, logsumexp = merged_tensors(*parts)
    else:
        output, logsumexp = merged_parts.merged(
            outputs, logsumexps, None if out is None else out[0]
        )
    logsumexp = _arrays.to_dtype(logsumexp, logsumexps[0].dtype)
    if out is None:
        return output, logsumexp
    for buffer, result in zip(out, (output, logsumexp), strict=True):
        if result is not buffer:
            buffer[...] = result
    return out
