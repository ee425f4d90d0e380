"""`RoPE.rotate`, for keys that are rotated once and cached."""

from __future__ import annotations

import numpy as np

from fuzz.bounds import Interval
from fuzz.compare import compare
from fuzz.draw import Draw
from fuzz.drawn.arrays import Format
from fuzz.drawn.rotations import drawn_rotation


def rotate(draw: Draw) -> None:
    """Check rotated vectors; cosine, sine and angle err as `bounds` says."""
    form, dim = Format.drawn(draw), draw.integer(2, 20)
    rope, rotation = drawn_rotation(draw, dim, causal=False)
    batch, length = draw.integer(1, 3), draw.integer(0, 12)
    x, exact = form.array(draw, draw.normal(batch, draw.integer(1, 3), length, dim))
    at = draw.integers(0, draw.one_of((20, 10_000, 2**31 - 1)), (draw.one_of((1, batch)), length))
    given = draw.chance(0.8)
    positions = at if given else np.arange(length)[None]
    expected, size = exact.copy(), np.zeros_like(exact)
    for m in range(rotation.pairs):
        first, second = rotation.channels(m)
        turned = (exact[..., first] + 1j * exact[..., second]) * rotation.turn(
            m, positions[:, None].astype(np.float64)
        )
        expected[..., first], expected[..., second] = turned.real, turned.imag
        size[..., first] = size[..., second] = np.abs(turned)
    error = (5 * form.unit + 2.0**-51 * positions[:, None, :, None]) * size
    result = rope.rotate(x, form.whole(draw, at) if given else None)
    compare("rotate", result, Interval(expected, error, error), form.name)
