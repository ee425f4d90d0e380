"""Log-n scaling: scores grow with the logarithm of the number of keys that a query sees.

The kernels take a factor for each query, besides the scale.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array
from ntk_alibi.masks import Mask, Problem
from ntk_alibi.positions import checks


def log_n_scale(
    query_length: int,
    key_length: int,
    train_length: int,
    *,
    key_padding_mask: Array | None = None,
    query_positions: Array | None = None,
    key_positions: Array | None = None,
    **mask: Any,
) -> Array:
    """Return factors of queries that keep the entropy of attention as more keys are seen.

    max(1, log n_i / log train_length),  n_i the number of keys that query i sees

    Factors are 1 up to the training length, so models that were trained without them can use them.
    `attention` applies them with log_n=train_length. Keys that a bias hides by -inf count as seen.

    Args:
        query_length: Q, the last query at the last key unless there are positions.
        key_length: K.
        train_length: the training length in tokens, at least 2.
        key_padding_mask: (batch, K), as for `attention`.
        query_positions: (Q,) or (batch, Q), as for `attention`.
        key_positions: (K,) or (batch, K), as for `attention`.
        mask: the options causal, window, causal_block and sink of `attention`.

    Returns:
        (1 or batch, Q) float32 numbers >= 1, a tensor if the mask or positions are tensors.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import ntk_alibi as na
        >>> na.log_n_scale(3, 64, 8)
        array([[1.9847322, 1.9924266, 2.       ]], dtype=float32)

    Source: Su 2021 (spaces.ac.cn/archives/8823) for the entropy and the max; Chiang and Cholak 2022
    (arXiv 2202.12172) for log n.
    """
    queries = _checks.integer("query_length", query_length, minimum=0)
    keys = _checks.integer("key_length", key_length, minimum=0)
    lists = key_padding_mask, query_positions, key_positions
    arrays = [x if x is None or _arrays.is_array(x) else np.asarray(x) for x in lists]
    rows = max((len(x) for x in arrays if x is not None and x.ndim == 2), default=1)
    rule, shape = Mask.checked(**mask), (rows, 1, queries, keys)
    problem = Problem.checked(shape, rule, arrays[0], arrays[1], arrays[2])
    length = checks.train_length("train_length", train_length)
    example = next((x for x in arrays if _arrays.is_tensor(x)), None)
    result: Array = _arrays.to_float32(log_n_factors(problem, length, example))
    return result


def log_n_factors(problem: Problem, train_length: int, like: Any = None) -> Any:
    """Return the factors, (1 or batch, Q) float64, of checked arguments in like's framework."""
    seen = problem.visible_count(like)
    xp = _arrays.namespace(seen)
    counts = _arrays.to_float64(xp.clip(seen, 1, None), None)
    return xp.clip(xp.log(counts) / math.log(train_length), 1.0, None)
