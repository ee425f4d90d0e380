"""Masks of pairs of a query and a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ntk_alibi as na
from fuzz.draw import Draw
from fuzz.drawn.arrays import Format
from fuzz.drawn.sizes import Sizes

Mask = NDArray[np.bool_]


def drawn_pair_mask(draw: Draw, sizes: Sizes, distance: NDArray[np.int64]) -> Mask:
    """Draw a mask (batch or 1, heads or 1, Q, K)."""
    batch, heads, queries, keys = sizes.pairs
    shape = (draw.one_of((1, batch)), draw.one_of((1, heads)), queries, keys)
    share = draw.one_of((0.0, 0.02, 0.5, 0.9, 1.0))
    mask: Mask = draw.generator.random(shape) < share
    style = draw.one_of(("pairs", "pairs", "blocks", "rows", "causal", "prefix", "documents"))
    if style == "blocks":
        coarse = draw.generator.random((*shape[:2], queries // 32 + 1, keys // 64 + 1)) < share
        mask = coarse.repeat(32, 2).repeat(64, 3)[:, :, :queries, :keys]
    elif style == "rows":
        mask &= draw.generator.random((*shape[:3], 1)) < 0.5
    elif style == "causal":
        mask[:] = distance[:1] >= 0
    elif style == "prefix":
        mask[:] = (distance[:1] >= 0) | (np.arange(keys) < draw.integer(0, keys))
    elif style == "documents":
        texts = [np.sort(draw.integers(0, 4, n)) for n in (queries, keys)]
        mask[:] = texts[0][:, None] == texts[1]
    return mask


def mask_argument(draw: Draw, form: Format, mask: Mask) -> Any:
    """Return a mask for the call, in a random layout, at times as a `BlockMask`."""
    layout = draw.one_of(("plain", "transposed", "spread"))
    if layout == "transposed":
        mask = np.ascontiguousarray(mask.swapaxes(2, 3)).swapaxes(2, 3)
    elif layout == "spread":
        mask = np.repeat(np.repeat(mask, 2, axis=2), 2, axis=3)[:, :, ::2, 1::2]
    given: Any = torch.from_numpy(mask.copy() if layout == "plain" else mask)
    given = given if form.tensors else given.numpy()
    return na.BlockMask(given) if draw.chance(0.3) else given
