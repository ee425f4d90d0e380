"""Masks of pairs of every kind, and the same mask with other strides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

#: The kinds of `pair_mask`.
KINDS = (
    "half",
    "few",
    "causal",
    "prefix",
    "documents",
    "tree",
    "global",
    "empty rows",
    "empty blocks",
    "none",
    "all",
)

#: The layouts of `laid_out_mask`.
LAYOUTS = ("plain", "transposed", "reversed", "spread", "odd", "fortran")


def pair_mask(kind: str, shape: tuple[int, int, int, int], seed: int = 0) -> Mask:
    """Return a mask (batch, heads, queries, keys); the last query is at the last key."""
    random = np.random.default_rng(seed)
    batch, heads, queries, keys = shape
    rows, columns = np.arange(keys - queries, keys)[:, None], np.arange(keys)[None]
    mask = random.random(shape) < (0.02 if kind == "few" else 0.5)
    if kind == "causal":
        mask[:] = columns <= rows
    elif kind == "prefix":
        mask[:] = (columns <= rows) | (columns < random.integers(keys + 1))
    elif kind == "documents":
        ends = np.sort(random.integers(0, keys + 1, 3))
        mask[:] = np.searchsorted(ends, rows, "right") == np.searchsorted(ends, columns, "right")
    elif kind == "tree":
        mask[:] = tree(queries, keys, random)
    elif kind == "global":
        mask[:] = (abs(rows - columns) < 5) | (columns % 50 == 3) | (rows % 50 == 3)
    elif kind == "empty rows":
        mask &= random.random((batch, heads, queries, 1)) < 0.5
    elif kind == "empty blocks":
        mask &= random.random((batch, heads, 1, keys // 64 + 1)).repeat(64, -1)[..., :keys] < 0.5
    elif kind in ("none", "all"):
        mask[:] = kind == "all"
    return mask


def tree(queries: int, keys: int, random: np.random.Generator) -> Mask:
    """Return the mask of drafts: a query sees the text before, its ancestors and itself."""
    before = max(keys - queries, 0)
    mask = np.zeros((queries, keys), np.bool_)
    mask[:, :before] = True
    for query in range(min(queries, keys)):
        if query:
            mask[query] = mask[random.integers(query)]
        mask[query, before + query] = True
    return mask


def laid_out_mask(mask: Mask, layout: str) -> Mask:
    """Return an equal mask with other strides."""
    if layout == "transposed":
        return np.ascontiguousarray(mask.swapaxes(2, 3)).swapaxes(2, 3)
    if layout == "reversed":
        return np.ascontiguousarray(mask[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1]
    if layout == "spread":
        whole = np.zeros((*mask.shape[:2], *(2 * n for n in mask.shape[2:])), np.bool_)
        whole[:, :, ::2, 1::2] = mask
        return whole[:, :, ::2, 1::2]
    if layout == "odd":
        whole = np.zeros(mask.size + 1, np.bool_)[1:].reshape(mask.shape)
        whole[:] = mask
        return whole
    if layout == "fortran":
        return np.asfortranarray(mask)
    return mask


def shared_over(mask: Mask, axes: tuple[int, ...], *, expand: bool) -> Any:
    """Return the mask of the first entry along some axes, as an axis of 1 or expanded."""
    index = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))
    return np.broadcast_to(mask[index], mask.shape) if expand else mask[index]
