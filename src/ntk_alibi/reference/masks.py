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
    """Return positions of queries (batch, Q) and keys (batch, K), from 0 in each packed segment.

    A key's position is the number of earlier keys in its segment. The last query of a segment is at
    the segment's last key; earlier queries count back from there. By default the queries are the
    keys. Source: Krell et al. 2021, arXiv 2107.02027.
    """
    keys = np.asarray(segment_ids)
    queries = keys if query_segment_ids is None else np.asarray(query_segment_ids)
    at_keys = [[int(np.sum(row[:k] == row[k])) for k in range(len(row))] for row in keys]
    at_queries = [
        [int(np.sum(row == ids[i]) - np.sum(ids[i:] == ids[i])) for i in range(len(ids))]
        for row, ids in zip(keys, queries, strict=True)
    ]
    return np.asarray(at_queries), np.asarray(at_keys)


def distances(query_length: int, key_length: int) -> Floats:
    """Return the distances i - j, (queries, keys), with the last query at the last key."""
    queries = np.arange(query_length) + (key_length - query_length)
    return (queries[:, None] - np.arange(key_length)[None, :]).astype(np.float64)


def visible(
    query_positions: ArrayLike, key_positions: ArrayLike, key_padding_mask: Any = None, *,
    causal: bool = True, window: int | None = None, causal_block: int | None = None, sink: int = 0,
    segment_ids: Any = None, query_segment_ids: Any = None,
) -> NDArray[np.bool_]:  # fmt: skip
    """Return which keys each query sees, (..., Q, K) bool, deciding each pair by itself.

    For a query at p and a key at k, with d = p - k, the first of these that holds decides:

    1. key_padding_mask (..., K) is 0 for the key, or the query's id in query_segment_ids (..., Q)
       differs from the key's id in segment_ids (..., K): hidden.
    2. causal and d < 0: hidden. Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3.
    3. a window and d <= -window: hidden. Defined by this package, for keys ahead.
    4. k < sink: visible. Xiao et al. 2023, arXiv 2309.17453, section 3.2.
    5. a window and d >= window: hidden. Beltagy et al. 2020, arXiv 2004.05150, section 3.1.
    6. k is before the block that precedes p's block: hidden. Sun et al. 2022, arXiv 2212.10554.
    7. otherwise: visible.
    """

    def sees(p: int, query_id: int, k: int, key_id: int, real: bool) -> bool:
        if not real or query_id != key_id:
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
    ids = (np.asarray([0] if x is None else x) for x in (query_segment_ids, segment_ids))
    query_ids, key_ids = ids
    decide = np.vectorize(sees, otypes=[np.bool_])
    by_query = (x[..., None] for x in (queries, query_ids))
    by_key = (x[..., None, :] for x in (keys, key_ids, real))
    return np.array(decide(*by_query, *by_key), np.bool_)


def streaming_distances(
    length: int, window: int | None = None, sink: int = 0, causal_block: int | None = None
) -> Floats:
    """Return distances (length, length) within a cache that keeps only sinks and window or blocks.

    Distances count cached keys only, without evicted ones. They are infinite for keys that the
    query does not see. Source: Xiao et al. 2023, arXiv 2309.17453, section 3.2.
    """
    tokens = np.arange(length)
    seen = visible(tokens, tokens, window=window, sink=sink, causal_block=causal_block)
    return np.where(seen, seen.sum(axis=1, keepdims=True) - seen.cumsum(axis=1), np.inf)
