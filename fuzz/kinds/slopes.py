"""`alibi_slopes` with every scaling, config dicts, and `log_n_scale`."""

from __future__ import annotations

from typing import Any

import numpy as np

import ntk_alibi as na
from fuzz.bounds import Interval
from fuzz.compare import WrongError, compare
from fuzz.draw import Draw
from fuzz.drawn.arrays import Format
from fuzz.drawn.linear_biases import drawn_scaling
from fuzz.drawn.places import drawn_places
from fuzz.drawn.sizes import Sizes
from fuzz.oracle import slopes as oracle
from fuzz.oracle.scaling_cases import SCALING_CASES

#: Slopes are computed in float64 and rounded once: two ulps of float32 are more than enough.
ERROR = 2 * 2.0**-24


def slopes(draw: Draw) -> None:
    """Check slopes of every scaling, and that its config gives the scaling again."""
    heads, rule = draw.integer(1, 130), _choice(draw, "press", "geometric")
    e = oracle.exponents(heads, rule)
    if draw.chance(0.1):
        _compare(na.alibi_slopes(heads, rule=rule), 2.0**-e)
        return
    name = draw.one_of(list(SCALING_CASES))
    scaling, weights = drawn_scaling(draw, name)
    _round_trip(scaling)
    if not SCALING_CASES[name].dynamic:
        expected = oracle.scaled(e, weights(e), scaling.factor)
        _compare(na.alibi_slopes(heads, scaling, rule=rule), expected)
        return
    lengths = draw.integers(0, draw.one_of((3, 100, 100_000)), draw.integer(1, 4))
    factor = oracle.dynamic_factor(scaling.rate, lengths, scaling.train_length)
    passed = draw.one_of((lengths, lengths.tolist(), lengths.astype(">i4")))
    result = na.alibi_slopes(heads, scaling, passed, rule=rule)
    _compare(result, oracle.scaled(e, weights(e), factor))


def _choice(draw: Draw, *names: str) -> Any:
    return draw.one_of(names)


def _compare(result: Any, expected: Any) -> None:
    error = ERROR * expected
    compare("alibi_slopes", result, Interval(expected, error, error), "float32")


def _round_trip(scaling: Any) -> None:
    if na.scaling_from_config(scaling.to_config()) != scaling:
        raise WrongError(f"scaling_from_config does not give {scaling!r} again")


def log_n(draw: Draw) -> None:
    """Check `log_n_scale`."""
    sizes = Sizes.drawn(draw, cheaper=10.0)._replace(heads=1, kv_heads=1)
    places = drawn_places(draw, sizes, Format("float32", draw.chance(0.3)))
    if {"align", "segment_ids", "mask"} & places.options.keys():
        return
    length = draw.integer(2, 100)
    expected = places.pairs.log_n_factors(length)[:, 0, :, 0]
    result = na.log_n_scale(sizes.queries, sizes.keys, length, **places.options)
    expected = np.broadcast_to(expected, (max(len(expected), len(result)), sizes.queries))
    error = ERROR * expected
    compare("log_n_scale", result, Interval(expected, error, error), "float32")
