"""Masks, paddings and positions of calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.draw import Draw
from fuzz.drawn.arrays import Format
from fuzz.drawn.pair_masks import drawn_pair_mask, mask_argument
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
        explicit: whether queries may be elsewhere than at the last keys.
    """

    options: dict[str, Any]
    pairs: Pairs
    explicit: bool

    @property
    def rule(self) -> MaskRule:
        """The mask options."""
        return self.pairs.rule

    @property
    def span(self) -> int:
        """The number of distances from the smallest to the largest."""
        d = self.pairs.distance
        return int(np.ptp(d)) + 1 if d.size else 1


def drawn_places(
    draw: Draw, sizes: Sizes, form: Format, *, causal: bool | None = None, far: bool = False
) -> Places:
    """Draw mask options, padding and positions; far positions are up to 2^31."""
    places = _drawn_places(draw, sizes, form, causal=causal, far=far)
    if not draw.chance(0.2):
        return places
    mask = drawn_pair_mask(draw, sizes, places.pairs.distance)
    options = {**places.options, "mask": mask_argument(draw, form, mask)}
    return replace(places, options=options, pairs=replace(places.pairs, mask=mask))


def _drawn_places(
    draw: Draw, sizes: Sizes, form: Format, *, causal: bool | None, far: bool
) -> Places:
    rule = _rule(draw, sizes, draw.chance(0.65) if causal is None else causal)
    options: dict[str, Any] = {k: v for k, v in vars(rule).items() if v != vars(MaskRule())[k]}
    real = None
    if draw.chance(0.35):
        real = _padding(draw, sizes)
        options["key_padding_mask"] = _mask_argument(draw, form, real)
    if not far and draw.chance(0.2):
        return _packed(draw, sizes, form, rule, real, options)
    queries, keys = _default(sizes)
    explicit = False
    if draw.chance(0.3) or far:
        keys = _positions(draw, sizes.batch, sizes.keys, real, far=far)
        options["key_positions"] = _argument(draw, form, keys)
        if sizes.queries > sizes.keys or draw.chance(0.5):
            explicit = True
        else:
            queries = keys[:, sizes.keys - sizes.queries :]
    elif draw.chance(0.1):
        options["align"] = "start"
        queries = np.arange(sizes.queries)[None]
        explicit = True
    elif draw.chance(0.15) or (sizes.queries > sizes.keys and rule != MaskRule(causal=False)):
        explicit = True
    if explicit and "align" not in options:
        queries = _positions(draw, sizes.batch, sizes.queries, None, far=far)
        options["query_positions"] = _argument(draw, form, queries)
    return Places(options, Pairs(queries, keys, real, rule), explicit)


def _packed(
    draw: Draw,
    sizes: Sizes,
    form: Format,
    rule: MaskRule,
    real: NDArray[np.bool_] | None,
    options: dict[str, Any],
) -> Places:
    """Draw packed segments of keys and queries, sometimes in other columns, and positions."""
    batch, _, queries, keys = sizes.pairs
    rows = batch if draw.chance(0.5) else 1
    values = [draw.generator.permutation(40) for _ in range(rows)]
    of_keys = np.array([_texts(draw, row, keys) for row in values])
    options["segment_ids"] = _argument(draw, form, of_keys)
    explicit = queries > keys or draw.chance(0.25)
    of_queries = of_keys[:, keys - queries :]
    if explicit:
        of_queries = np.array(
            [_texts(draw, draw.generator.permutation(x), queries) for x in values]
        )
        options["query_segment_ids"] = _argument(draw, form, of_queries)
    at_keys = np.zeros(of_keys.shape, np.int64)
    for row, number in _each(of_keys):
        own = of_keys[row] == number
        at_keys[row, own] = np.arange(own.sum())
    counts = at_keys
    if draw.chance(0.3):
        steps = np.cumsum(draw.integers(0, 3, at_keys.shape), axis=1)
        at_keys = at_keys + steps - steps[:, :1] + draw.integers(0, 50, (rows, 1))
        options["key_positions"] = _argument(draw, form, at_keys)
    at_queries = np.zeros(of_queries.shape, np.int64)
    few = False
    for row, number in _each(of_queries):
        own, others = of_queries[row] == number, of_keys[row] == number
        few |= own.sum() > others.sum()
        last = np.arange(others.sum() - own.sum(), others.sum())
        at_queries[row, own] = last if counts is at_keys or few else at_keys[row, others][last]
    if (few and counts is not at_keys) or draw.chance(0.1):
        explicit = True
        at_queries = _positions(draw, batch, queries, None, far=False)
        options["query_positions"] = _argument(draw, form, at_queries)
    return Places(options, Pairs(at_queries, at_keys, real, rule, (of_queries, of_keys)), explicit)


def _texts(draw: Draw, values: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return runs of the first few ids, each with at least one token."""
    runs = draw.integer(1, min(length, draw.one_of((1, 3, 8)))) if length else 0
    cuts: Any = []
    if runs > 1:
        cuts = np.sort(draw.generator.choice(length - 1, runs - 1, replace=False) + 1)
    return np.repeat(values[:runs], np.diff([0, *cuts, length])) if runs else values[:0]


def _each(ids: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield each row with each of its ids."""
    for row, values in enumerate(ids):
        for number in np.unique(values).tolist():
            yield row, number


def _default(sizes: Sizes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    keys = np.arange(sizes.keys)[None]
    return np.arange(sizes.keys - sizes.queries, sizes.keys)[None], keys


def _rule(draw: Draw, sizes: Sizes, causal: bool) -> MaskRule:
    if draw.chance(0.5):
        return MaskRule(causal)
    reach = max(sizes.keys, 2)
    window = draw.integer(1, reach) if draw.chance(0.6) else None
    block = draw.integer(1, reach) if causal and draw.chance(0.4) else None
    limited = window is not None or block is not None
    sink = draw.integer(0, max(reach // 3, 1)) if limited and draw.chance(0.5) else 0
    return MaskRule(causal, window, block, sink)


def _padding(draw: Draw, sizes: Sizes) -> NDArray[np.bool_]:
    columns, batch = np.arange(sizes.keys), sizes.batch
    style = draw.one_of(("left", "right", "holes", "all", "none"))
    lengths = draw.integers(0, sizes.keys, (batch, 1))
    real: NDArray[np.bool_] = draw.generator.random((batch, sizes.keys)) < 0.7
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
        at = draw.generator.permuted(at, axis=1)
    elif style == "gaps":
        at = np.cumsum(draw.integers(0, 5, (rows, length)), axis=1)
    top = GREATEST_POSITION - int(at.max(initial=0))
    if far:
        return at + draw.integers(0, min(top, int(draw.power(3, 9.4))), (rows, 1))
    if style == "shifted" or draw.chance(0.3):
        at = at + draw.integers(0, draw.one_of((10, 300)), (rows, 1))
    return at
