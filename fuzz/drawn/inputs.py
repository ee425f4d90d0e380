"""Inputs of attention: normal values, and values that defeat heuristics."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fuzz.draw import Draw
from fuzz.drawn.sizes import Sizes

Floats = NDArray[np.float64]


def draw_inputs(draw: Draw, sizes: Sizes) -> tuple[Floats, Floats, Floats]:
    """Draw queries, keys and values."""
    query = draw.normal(sizes.batch, sizes.heads, sizes.queries, sizes.dim)
    key, value = (draw.normal(sizes.batch, sizes.kv_heads, sizes.keys, sizes.dim) for _ in "kv")
    if key.size:
        style = draw.weighted({name: weight for name, (weight, _) in STYLES.items()})
        STYLES[style][1](draw, query, key, value)
    return query, key, value


def _normal(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    pass


def _powers(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    query *= draw.power(-4, 2)
    key *= draw.power(-4, 2)
    value *= draw.power(-4, 4)


def _whole(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    for values in (query, key, value):
        np.round(2 * values, out=values)


def _equal_keys(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    key[...] = 1.0


def _equal_values(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    value[...] = draw.uniform(-3, 3)


def _zeros(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    query *= 0.0


def _huge_key(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    key[:, :, draw.integer(0, key.shape[2] - 1)] *= draw.power(0.5, 3)


def _sinks(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    key[:, :, :4] *= 20.0


def _growing(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    key *= np.geomspace(draw.power(-1, 2), 0.1, key.shape[2])[:, None]


def _huge_values(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    value *= np.geomspace(draw.power(0, 4.5), 1.0, key.shape[2])[:, None]


def _tiny(draw: Draw, query: Floats, key: Floats, value: Floats) -> None:
    query *= draw.power(-30, -5)
    key *= draw.power(-7, -5)


#: By name: how often it is drawn, and the function that changes normal values.
STYLES = {
    "normal": (8, _normal),
    "powers": (3, _powers),
    "whole": (2, _whole),
    "equal keys": (1, _equal_keys),
    "equal values": (0.5, _equal_values),
    "zeros": (0.5, _zeros),
    "huge key": (1.5, _huge_key),
    "sinks": (1, _sinks),
    "growing": (1, _growing),
    "huge values": (1, _huge_values),
    "tiny": (0.5, _tiny),
}
