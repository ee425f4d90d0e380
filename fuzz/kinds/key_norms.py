"""Key norms of a growing cache, and results that use them."""

from __future__ import annotations

import ntk_alibi as na
from fuzz.compare import exactly
from fuzz.draw import Draw
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
    exactly("norms in steps", norms.norms[:, :, : _blocks(length)], na.KeyNorms().update(key).norms)
    plain = not {"key_padding_mask", "key_positions", "rotary"} & call.options.keys()
    if not plain or call.exempt:
        return
    compare_results(call, call.attend(key_norms=norms, return_logsumexp=True))


def _blocks(length: int) -> int:
    return -(-length // 64)
