"""Key norms of a growing cache, and results that use them."""

from __future__ import annotations

import numpy as np

import ntk_alibi as na
from fuzz.bounds import Floats, Interval
from fuzz.compare import compare
from fuzz.draw import Draw
from fuzz.drawn.arrays import as_float64
from fuzz.drawn.calls import Wishes, drawn_call
from fuzz.kinds.forward import compare_results


def key_norms(draw: Draw) -> None:
    """Check norms that grow in steps, and the call that takes them."""
    call = drawn_call(draw, Wishes(wide=False, poison=False))
    key = call.arrays[1]
    norms, length = na.KeyNorms(), 0
    while length < call.sizes.keys:
        length = draw.integer(length + 1, call.sizes.keys)
        norms.update(key[:, :, :length])
    norms.update(key)
    _check_norms(norms, as_float64(key))
    plain = not {"key_padding_mask", "key_positions", "segment_ids", "rotary"} & call.options.keys()
    if not plain or call.exempt:
        return
    compare_results(call, call.attend(key_norms=norms, return_logsumexp=True))


def _check_norms(norms: na.KeyNorms, key: Floats) -> None:
    """Check the greatest norms of each block, and up to it, of keys less the kept centre."""
    away = np.sqrt(((key - norms.centres[:, :, None]) ** 2).sum(-1))
    padding = np.zeros((*away.shape[:2], -away.shape[2] % 64))
    of_block = np.concatenate([away, padding], -1).reshape(*away.shape[:2], -1, 64).max(-1)
    for column, exact in enumerate((of_block, np.maximum.accumulate(of_block, -1))):
        error = (key.shape[3] + 4) * 2.0**-24 * exact + 4e-18
        found = norms.norms[:, :, : of_block.shape[2], column]
        compare("norms", found, Interval(exact, error, error), "float32")
