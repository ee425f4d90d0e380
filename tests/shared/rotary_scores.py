"""Rotary embeddings, and the scores that they give as papers write them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ntk_alibi as na

ROTARY = {
    "RoPE": lambda dim, **kw: na.RoPE(dim, **kw),
    "XPOS": lambda dim, **kw: na.XPOS(dim, **kw),
    "XPOS of many centres": lambda dim, **kw: na.XPOS(dim, 100.0, 5.0, 0.2, **kw),
}


def in_pairs(x: NDArray[Any], layout: str) -> NDArray[np.float64]:
    """Return rotary channels in the papers' order."""
    x = np.asarray(x, np.float64)
    half = x.shape[-1] // 2
    order = np.stack([np.arange(half), np.arange(half) + half], axis=-1).ravel()
    return x if layout == "pairs" else x[..., order]


def products(
    rotary: Any, query: Any, key: Any, q: NDArray[Any], k: NDArray[Any]
) -> NDArray[np.float64]:
    """Return q.k of all pairs (batch, heads, queries, keys) by the reference."""
    batch, heads, queries, _ = query.shape
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    key = np.repeat(key, heads // key.shape[1], axis=1)
    if rotary is None:
        return query @ key.swapaxes(-1, -2)
    turned = rotary.rotary_dim
    result = query[..., turned:] @ key[..., turned:].swapaxes(-1, -2)
    query, key = (in_pairs(x[..., :turned], rotary.layout) for x in (query, key))
    rows = np.broadcast_to(q, (batch, queries)), np.broadcast_to(k, (batch, key.shape[2]))
    for b, (at_query, at_key) in enumerate(zip(*rows, strict=True)):
        if isinstance(rotary, na.XPOS):
            settings = (rotary.base, rotary.scale_base, rotary.gamma)
            result[b] += na.reference.xpos_scores(query[b], key[b], at_query, at_key, *settings)
        else:
            left, right = (
                na.reference.rope(x[b], at / rotary.factor, rotary.base)
                for x, at in ((query, at_query), (key, at_key))
            )
            result[b] += left @ right.swapaxes(-1, -2)
    return result


def reference_scores(
    arrays: Any,
    rotary: Any,
    q: NDArray[Any],
    k: NDArray[Any],
    seen: NDArray[np.bool_],
    log_n: int | None = None,
    scale: float | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Return scores of all pairs, 0 for hidden keys, and the greatest scale in them."""
    scale = 1 / math.sqrt(arrays[0].shape[3]) if scale is None else scale
    factors = np.ones((1, 1, 1)) if log_n is None else na.reference.log_n_factors(seen, log_n)
    with np.errstate(invalid="ignore"):  # NaN in keys that no query sees
        scores = scale * factors[..., None] * products(rotary, *arrays[:2], q, k)
    return np.where(seen, scores, 0.0), scale * float(factors.max(initial=1.0))
