"""Biases over distance: `BIAS_CASES`, T5, tables and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ntk_alibi as na
from fuzz.drawn.bias import DrawnBias, Scene, by_index, column, over_heads
from fuzz.oracle import biases
from fuzz.oracle.bias_cases import BIAS_CASES

Floats = NDArray[np.float64]

#: The distance up to which a table from 0 on is short.
FAR = 1000


def of_case(name: str, scene: Scene) -> DrawnBias:
    """Draw a bias of `BIAS_CASES`."""
    case = BIAS_CASES[name]
    array, options = case.draw(scene.draw, scene.sizes.heads, scene.learned)
    pairs = {key: scene.parameter(x) for key, x in array.items()}
    passed = {key: x for key, (x, _) in pairs.items()}
    exact = {key: x for key, (_, x) in pairs.items()}
    values, partials = case.values(scene.distance, exact, options)
    parameters = [
        parameter
        for key, x in passed.items()
        for parameter in scene.learn(key, x, over_heads(partials[key]))
    ]
    return DrawnBias(getattr(na, name)(**options, **passed), values, tuple(parameters))


def t5(scene: Scene) -> DrawnBias:
    """Draw T5's buckets."""
    draw, both = scene.draw, not scene.places.rule.causal or scene.draw.chance(0.5)
    buckets, most = draw.one_of((4, 8, 32)), draw.integer(20, 300)
    values, array = scene.parameter(3 * draw.normal(scene.sizes.heads, buckets))
    index = biases.t5_buckets(scene.places.pairs.distance, buckets, most, bidirectional=both)
    parameters = scene.learn("values", values, by_index(index, array.shape))
    return DrawnBias(na.T5(values, both, most), _look_up(array, index), parameters)


def _look_up(table: Floats, index: NDArray[np.int64]) -> Floats:
    looked: Floats = table[:, np.clip(index, 0, table.shape[1] - 1)[:, 0]].swapaxes(0, 1)
    return looked


def table(scene: Scene) -> DrawnBias:
    """Draw a table that covers all distances, or distances behind the queries only."""
    draw, d = scene.draw, scene.places.pairs.distance
    least, most = (int(d.min()), int(d.max())) if d.size else (0, 0)
    begin = min(least - draw.one_of((0, 0, 3)), -1)
    far = least > FAR
    if scene.places.rule.causal and (far or draw.chance(0.7)):
        begin = max(least, 0)
    elif far:  # only a table that begins below 0 is for other attention
        return function(scene)
    most = max(most, begin)
    size = most - begin + 1 + draw.one_of((0, 0, 5))
    decay = -draw.power(-3, 0) * np.abs(np.arange(size) + begin)
    array = draw.normal(scene.sizes.heads, size) * draw.power(-1, 1) + decay
    if draw.chance(0.2):
        array[draw.generator.random(array.shape) < draw.one_of((0.1, 0.005))] = -np.inf
    passed, array = scene.parameter(array)
    index = d - begin
    parameters = scene.learn("table", passed, by_index(index, array.shape))
    return DrawnBias(na.DistanceTable(passed, begin), _look_up(array, index), parameters)


def function(scene: Scene) -> DrawnBias:
    """Draw a user's function of distance: -a sqrt |d|, with a per head."""
    strength, array = scene.per_head(-2, 0.5)
    bias = na.DistanceFunction(_root(strength), scene.sizes.heads)
    partial = -np.sqrt(np.abs(scene.distance))
    parameters = scene.learn("strength", strength, over_heads(partial))
    return DrawnBias(bias, column(array) * partial, parameters)


def _root(strength: Any) -> Callable[[Floats], Any]:
    def root(distance: Floats) -> Any:
        if isinstance(strength, torch.Tensor):
            return -strength[:, None] * torch.from_numpy(np.sqrt(np.abs(distance)))
        return -np.asarray(strength, np.float64)[:, None] * np.sqrt(np.abs(distance))

    return root
