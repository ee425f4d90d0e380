"""The ends of float32's range and of positions: a right result, or an error with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import ntk_alibi as na
from fuzz.draw import Draw
from fuzz.drawn.arrays import GREATEST
from fuzz.drawn.bias import DrawnBias, column
from fuzz.drawn.calls import Call, Wishes, drawn_call
from fuzz.kinds.forward import compare_results
from fuzz.oracle import biases


def extreme(draw: Draw) -> None:
    """Check scales, values, slopes and dense values up to the greatest of float32."""
    wishes = Wishes(wide=False, poison=False, cheaper=5.0)
    call = drawn_call(draw, wishes)
    what = draw.one_of(("scale", "queries", "values", "bias"))
    if what == "scale":
        scale = draw.power(-38, 300) * draw.one_of((1.0, -1.0))
        call = replace(call, options={**call.options, "scale": scale})
    if what == "bias":
        call = replace(call, **_bias(draw, call))
    _refused_or_right(replace(call, **_inputs(draw, call, what)))


def _inputs(draw: Draw, call: Call, what: str) -> dict[str, Any]:
    """Draw values near the end of the dtype, or queries that the scale brings back.

    Values that the call's own bias hides are 0 to the oracle, so they are 0 in the new arrays.
    """
    query, key, value = call.exact
    options = dict(call.options)
    if what == "values":
        value = value * GREATEST[call.form.name] * draw.power(-2, 0)
    if what == "queries":
        size = draw.power(-37, 37)
        query = query * size
        options["scale"] = draw.power(-2, 0) / size
    first = (slice(None), slice(None, None, call.group))
    pairs = [call.form.array(draw, x) for x in (query, key[first], value[first])]
    (passed, exact) = zip(*pairs, strict=True)
    repeated = (exact[0], *(np.repeat(x, call.group, axis=1) for x in exact[1:]))
    return {"arrays": passed, "exact": repeated, "options": options}


def _bias(draw: Draw, call: Call) -> dict[str, Any]:
    """Draw a bias with huge values."""
    heads, (batch, _, queries, keys) = call.sizes.heads, call.sizes.pairs
    size = draw.power(20, 38.53) * draw.one_of((-1.0, -1.0, 1.0))
    if draw.chance(0.5):
        shape = draw.one_of(((queries, keys), (keys,), (batch, 1, queries, keys), (queries, 1)))
        chosen = draw.generator.random(shape) < draw.one_of((0.3, 1.0))
        entries = np.where(chosen, np.float32(size), draw.normal(*shape)).astype(np.float32)
        return {"bias_name": "dense", "bias": DrawnBias(entries, entries.astype(np.float64))}
    entries = np.full(heads, size, np.float32)
    distance = call.places.pairs.distance.astype(np.float64)
    slopes = column(entries.astype(np.float64))
    values, _ = biases.linear(distance, slopes, slopes)
    passed = na.ALiBi(heads, slopes=entries, sides="symmetric")
    return {"bias_name": "ALiBi(slopes)", "bias": DrawnBias(passed, values)}


def far(draw: Draw) -> None:
    """Check positions up to 2^31: queries far from all keys, too, have the weights of near ones."""
    wishes = Wishes(far=True, wide=False, cheaper=5.0)
    _refused_or_right(drawn_call(draw, wishes), relative=True)


def _refused_or_right(call: Call, *, relative: bool = False) -> None:
    try:
        results = call.attend(return_logsumexp=True)
    except ValueError as error:
        if any(
            name in str(error)
            for name in ("scale", "slopes", "bias", "positions", "table", "gates")
        ):
            return
        raise
    compare_results(call, results, relative=relative)
