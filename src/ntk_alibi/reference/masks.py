"""Positions, distances, and the keys that each query sees."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]


def key_positions(attention_mask: ArrayLike) -> Floats:
    """Return BLOOM's positions (batch, keys): real tokens count from 0, padding has 0."""
    mask = np.asarray(attention_mask, np.float64)
    return (np.cumsum(mask, axis=1) - 1.0) * mask


def text_positions(segment_ids: ArrayLike, query_segment_ids: Any = None) -> tuple[Any, Any]:
    """Return positions of queries (batch, Q) and keys (batch, K) that count from 0 in each text.

    A key's position is the number of keys of its text before it. The last query of a text is at the
    text's last key, so a query's position is the number of keys of its text, less the number of
    queries from it on. By default the queries are the keys. Krell et al. 2021, arXiv 2107.02027.
    """
    keys = np.asarray(segment_ids)
    queries = keys if query_segment_ids is None else np.asarray(query_segment_ids)
    at_keys = [[int(np.sum(row[:k] == row[k])) for k in range(len(row))] for row in keys]
    at_queries = [
        [int(np.sum(row == own[i]) - np.sum(own[i:] == own[i])) for i in range(len(own))]
        for row, own in zip(keys, queries, strict=True)
    ]
    return np.asarray(at_queries), np.asarray(at_keys)


def distances(query_length: int, key_length: int) -> Floats:
    """Return D = i - j (queries, keys), with the last query aligned with the last key."""
    queries = np.arange(query_length) + (key_length - query_length)
    return (queries[:, None] - np.arange(key_length)[None, :]).astype(np.float64)


def visible(
    query_positions: ArrayLike, key_positions: ArrayLike, key_padding_mask: Any = None, *,
    causal: bool = True, window: int | None = None, causal_block: int | None = None, sink: int = 0,
    segment_ids: Any = None, query_segment_ids: Any = None,
) -> NDArray[np.bool_]:  # fmt: skip
    """Return which keys each query sees, (..., Q, K), by one rule for each pair; no floats.

    For a query at p and a key at k, with d = p - k, the first of these that holds decides:

    1. key_padding_mask (..., K) is 0 for the key, or the query's number in query_segment_ids
       (..., Q) is not the key's in segment_ids (..., K): hidden.
    2. causal and d < 0: hidden. Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3.
    3. a window and d <= -window: hidden. This package's, for keys ahead.
    4. k < sink: visible. Xiao et al. 2023, arXiv 2309.17453, section 3.2.
    5. a window and d >= window: hidden. Beltagy et al. 2020, arXiv 2004.05150, section 3.1.
    6. k is before the block that precedes p's block: hidden. Sun et al. 2022, arXiv 2212.10554.
    7. otherwise: visible.
    """

    def sees(p: int, own: int, k: int, other: int, real: bool) -> bool:
        if not real or own != other:
            return False
        if (causal and p - k < 0) or (window is not None and p - k <= -window):
            return False
        if k < sink:
            return True
        if window is not None and p - k >= window:
            return False
        return causal_block is None or p // causal_block - k // causal_block <= 1

    queries, keys = np.asarray(query_positions), np.asarray(key_positions)
    real = np.asarray([1] if key_padding_mask is None else key_padding_mask) != 0
    own, other = (np.asarray([0] if x is None else x) for x in (query_segment_ids, segment_ids))
    decide = np.vectorize(sees, otypes=[np.bool_])
    of_queries = (x[..., None] for x in (queries, own))
    of_keys = (x[..., None, :] for x in (keys, other, real))
    return np.array(decide(*of_queries, *of_keys), np.bool_)


def streaming_distances(
    length: int, window: int | None = None, sink: int = 0, causal_block: int | None = None
) -> Floats:
    """Return distances (length, length) in a cache that holds the sinks and the window or blocks.

    Distances count the cached keys only, as evicted ones have left the cache; they are infinite for
    keys that the query does not see.
    """
    tokens = np.arange(length)
    seen = visible(tokens, tokens, window=window, sink=sink, causal_block=causal_block)
    return np.where(seen, seen.sum(axis=1, keepdims=True) - seen.cumsum(axis=1), np.inf)
