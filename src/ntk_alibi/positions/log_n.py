"""Log-n scaling: how many keys each query sees, and what that makes of its scores.

Kept apart from the kernels, which never see it: queries are multiplied before.
"""

from __future__ import annotations

import math
from typing import Any

from ntk_alibi import _arrays, _checks, masks
from ntk_alibi._arrays import Array
from ntk_alibi.masks import visible_keys
from ntk_alibi.positions import checks


def log_n_scale(
    query_length: int,
    key_length: int,
    train_length: int,
    *,
    causal: bool = True,
    window: int | None = None,
    causal_block: int | None = None,
    sink: int = 0,
    key_padding_mask: Array | None = None,
    query_positions: Array | None = None,
    key_positions: Array | None = None,
) -> Array:
    """Factors of queries that keep the entropy of attention where more keys are seen.

    max(1, log n_i / log train_length),  n_i the number of keys that query i sees

    Up to the training length nothing changes, so a model that was trained without it can take it.
    `attention` has it as log_n=train_length. Which keys are seen is what the arguments of
    `attention` of the same names say; what a bias hides by -inf is not looked at.

    Args:
        query_length: Q, the last query at the last key unless there are positions.
        key_length: K.
        train_length: tokens the model was trained at, at least 2.
        causal: as of `attention`, as the following.
        window: likewise.
        causal_block: likewise.
        sink: likewise.
        key_padding_mask: (batch, K).
        query_positions: (Q,) or (batch, Q).
        key_positions: (K,) or (batch, K).

    Returns:
        (1 or batch, Q) float32, a tensor if the mask or positions are; at least 1.

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
    causal = _checks.boolean("causal", causal)
    given = (key_padding_mask, query_positions, key_positions)
    if not _arrays.is_tracing():
        batch = max((len(x) for x in given if x is not None and x.ndim == 2), default=1)
        masks.checked_key_padding_mask(key_padding_mask, batch, keys)
        masks.checked_positions("query_positions", query_positions, batch, queries)
        masks.checked_positions("key_positions", key_positions, batch, keys)
        if query_positions is None and key_positions is not None:
            masks.check_keys_for_queries(queries, keys)
    example = next((x for x in given if _arrays.is_tensor(x)), None)
    factors = log_n_factors(
        *masks.both_positions(query_positions, key_positions, queries, keys, example),
        checks.train_length("train_length", train_length),
        causal=causal,
        window=None if window is None else _checks.integer("window", window, minimum=1),
        causal_block=masks.checked_causal_block(causal_block, causal=causal),
        sink=_checks.integer("sink", sink, minimum=0),
        key_padding_mask=key_padding_mask,
    )
    result: Array = _arrays.as_float32(factors)
    return result


def log_n_factors(
    query_positions: Any,
    key_positions: Any,
    train_length: int,
    *,
    causal: bool,
    window: int | None,
    causal_block: int | None,
    sink: int,
    key_padding_mask: Any,
) -> Any:
    """The factors in float64 of checked arguments, positions (1 or batch, length) integers."""
    module = _arrays.namespace(query_positions)
    seen = visible_keys(
        query_positions,
        key_positions,
        causal=causal,
        window=window,
        causal_block=causal_block,
        sink=sink,
        key_padding_mask=key_padding_mask,
    )
    counts = _arrays.widened(module.clip(seen, 1, None), None)
    return module.clip(module.log(counts) / math.log(train_length), 1.0, None)
