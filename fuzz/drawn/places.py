"""Masks, paddings and positions of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.draw import Draw
from fuzz.drawn.arrays import Format
from fuzz.drawn.sizes import Sizes
from fuzz.oracle.pairs import MaskRule, Pairs

#: Positions end here.
GREATEST_POSITION = 2**31 - 1


@dataclass(frozen=True)
class Places:
    """Positions of queries and keys.

    Attributes:
        options: keyword arguments of the call.
        pairs: the oracle's view.
        placed: whether queries have other positions than those of the last keys.
    """

    options: dict[str, Any]
    pairs: Pairs
    placed: bool

    @property
    def rule(self) -> MaskRule:
        """The mask options."""
        return self.pairs.rule

    @property
    def span(self) -> int:
        """The number of distances between the least and the greatest one."""
        d = self.pairs.distance
        return int(np.ptp(d)) + 1 if d.size else 1


def drawn_places(
    draw: Draw, sizes: Sizes, form: Format, *, causal: bool | None = None, far: bool = False
) -> Places:
    """Draw mask options, padding and positions; far positions lie up to 2^31."""
    rule = _rule(draw, sizes, draw.chance(0.65) if causal is None else causal)
    options: dict[str, Any] = {k: v for k, v in vars(rule).items() if v != vars(MaskRule())[k]}
    real = None
    if draw.chance(0.35):
        real = _padding(draw, sizes)
        options["key_padding_mask"] = _mask_argument(draw, form, real)
    queries, keys = _default(sizes)
    placed = False
    if draw.chance(0.3) or far:
        keys = _positions(draw, sizes.batch, sizes.keys, real, far=far)
        options["key_positions"] = _argument(draw, form, keys)
        if sizes.queries > sizes.keys or draw.chance(0.5):
            placed = True
        else:
            queries = keys[:, sizes.keys - sizes.queries :]
    elif draw.chance(0.1):
        options["align"] = "start"
        queries = np.arange(sizes.queries)[None]
        placed = True
    elif draw.chance(0.15):
        placed = True
    if placed and "align" not in options:
        queries = _positions(draw, sizes.batch, sizes.queries, None, far=far)
        options["query_positions"] = _argument(draw, form, queries)
    return Places(options, Pairs(queries, keys, real, rule), placed)


def _default(sizes: Sizes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    keys = np.arange(sizes.keys)[None]
    return np.arange(sizes.keys - sizes.queries, sizes.keys)[None], keys


def _rule(draw: Draw, sizes: Sizes, causal: bool) -> MaskRule:
    if draw.chance(0.5):
        return MaskRule(causal)
    reach = max(sizes.keys, 2)
    window = draw.integer(1, reach) if draw.chance(0.6) else None
    block = draw.integer(1, reach) if causal and draw.chance(0.4) else None
    sink = draw.integer(0, max(reach // 3, 1)) if draw.chance(0.5) else 0
    return MaskRule(causal, window, block, sink)


def _padding(draw: Draw, sizes: Sizes) -> NDArray[np.bool_]:
    columns, batch = np.arange(sizes.keys), sizes.batch
    style = draw.one_of(("left", "right", "holes", "all", "none"))
    lengths = draw.integers(0, sizes.keys, (batch, 1))
    real: NDArray[np.bool_] = draw.numbers.random((batch, sizes.keys)) < 0.7
    if style == "left":
        real = columns >= sizes.keys - lengths
    elif style == "right":
        real = columns < lengths
    elif style == "none":
        real[:] = True
    elif style == "all":
        real[:1] = False
    return real


def _mask_argument(draw: Draw, form: Format, real: NDArray[np.bool_]) -> Any:
    if draw.chance(0.4):
        return form.whole(draw, real)
    return form.whole(draw, real) == 1


def _argument(draw: Draw, form: Format, positions: NDArray[np.int64]) -> Any:
    """Return positions for the call, shared ones without or with a batch axis."""
    shared = len(positions) == 1 and draw.chance(0.7)
    return form.whole(draw, positions[0] if shared else positions)


def _positions(
    draw: Draw, batch: int, length: int, real: NDArray[np.bool_] | None, *, far: bool
) -> NDArray[np.int64]:
    rows = batch if draw.chance(0.5) else 1
    style = draw.one_of(("count", "shifted", "repeats", "decreasing", "shuffled", "gaps"))
    if style == "count" and real is not None:
        counted: NDArray[np.int64] = np.maximum(np.cumsum(real, axis=1) - 1, 0)
        return counted
    at = np.broadcast_to(np.arange(length), (rows, length)).astype(np.int64)
    if style == "repeats":
        at = np.sort(draw.integers(0, max(length // 2, 1), (rows, length)), axis=1)
    elif style == "decreasing":
        at = at[:, ::-1].copy()
    elif style == "shuffled":
        at = draw.numbers.permuted(at, axis=1)
    elif style == "gaps":
        at = np.cumsum(draw.integers(0, 5, (rows, length)), axis=1)
    top = GREATEST_POSITION - int(at.max(initial=0))
    if far:
        return at + draw.integers(0, min(top, int(draw.power(3, 9.4))), (rows, 1))
    if style == "shifted" or draw.chance(0.3):
        at = at + draw.integers(0, draw.one_of((10, 300)), (rows, 1))
    return at
