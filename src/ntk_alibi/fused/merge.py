"""Join results of attention over disjoint sets of keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ntk_alibi import _arrays
from ntk_alibi._arrays import Array
from ntk_alibi.fused import checks


def merge(outputs: Sequence[Array], logsumexps: Sequence[Array]) -> tuple[Array, Array]:
    """Join results of `attention` over disjoint sets of keys into the result over all of them.

    logsumexp = log sum_c exp(logsumexp_c),  output = sum_c exp(logsumexp_c - logsumexp) output_c

    Args:
        outputs: at least one, each (batch, heads, queries, head_dim).
        logsumexps: one for each output, (batch, heads, queries).

    Returns:
        (output, logsumexp), computed in float64, with framework and dtype of the first output and
        the first logsumexp; 0 and -inf for queries that see no key. Tensors may require grad.

    Raises:
        TypeError, ValueError: the lists differ in length, shapes or framework.

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
    return _arrays.to_dtype(output, outputs[0].dtype), _arrays.to_dtype(
        logsumexp, logsumexps[0].dtype
    )
