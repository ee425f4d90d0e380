"""Rotary embeddings, for the call and for the oracle."""

from __future__ import annotations

from typing import Any

import ntk_alibi as na
from fuzz.draw import Draw
from fuzz.oracle.products import Rotation


def drawn_rotation(draw: Draw, dim: int, *, causal: bool) -> tuple[Any, Rotation]:
    """Draw a RoPE, plain or stretched, or an XPOS; dim is at least 2."""
    channels = 2 * draw.integer(1, dim // 2)
    halves, base = draw.chance(0.5), draw.one_of((10000.0, draw.power(0.3, 6)))
    layout = "halves" if halves else "pairs"
    options: dict[str, Any] = {"layout": layout}
    if channels < dim or dim % 2 or draw.chance(0.5):
        options["rotary_dim"] = channels
    if "rotary_dim" not in options:
        channels = dim
    pairs = channels // 2
    if causal and draw.chance(0.4):
        scale_base, gamma = draw.one_of((512.0, draw.power(0, 3))), draw.one_of((0.4, 2.0))
        xpos = na.XPOS(dim, base, scale_base, gamma, **options)
        return xpos, Rotation(base, pairs, halves, 1.0, scale_base, gamma)
    factor = draw.one_of((1.0, draw.power(0, 2)))
    rope = na.RoPE(dim, base, factor, **options)
    stretch = draw.power(0, 2)
    if draw.chance(0.2):
        rope, factor = rope.stretched(na.Interpolation(stretch)), factor * stretch
    elif draw.chance(0.2) and pairs > 1:
        rope = rope.stretched(na.NTK(stretch))
        base *= stretch ** (pairs / (pairs - 1))
    return rope, Rotation(base, pairs, halves, factor)
