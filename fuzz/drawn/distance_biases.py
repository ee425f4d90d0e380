"""Biases over distance: KERPLE, BAM, Sandwich, T5, tables and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ntk_alibi as na
from fuzz.drawn.bias import DrawnBias, Scene, by_index, column, over_heads
from fuzz.oracle import biases

Floats = NDArray[np.float64]

#: The distance up to which a table from 0 on is short.
FAR = 1000


def _learned(
    scene: Scene, passed: dict[str, Any], result: tuple[Floats, biases.Partials], bias: Any
) -> DrawnBias:
    values, partials = result
    parameters = [
        parameter
        for name, x in passed.items()
        for parameter in scene.learn(name, x, over_heads(partials[name]))
    ]
    return DrawnBias(bias, values, tuple(parameters))


def kerple_power(scene: Scene) -> DrawnBias:
    """Draw KERPLE's power kernel."""
    r1, a = scene.per_head(-2, 0.5)
    r2, b = scene.parameter(scene.draw.numbers.uniform(0.05, 2.0, scene.sizes.heads))
    result = biases.kerple_power(scene.distance, column(a), column(b))
    return _learned(scene, {"r1": r1, "r2": r2}, result, na.KerplePower(r1, r2))


def kerple_log(scene: Scene) -> DrawnBias:
    """Draw KERPLE's logarithmic kernel."""
    (r1, a), (r2, b) = scene.per_head(-2, 1), scene.per_head(-2, 1)
    result = biases.kerple_log(scene.distance, column(a), column(b))
    return _learned(scene, {"r1": r1, "r2": r2}, result, na.KerpleLog(r1, r2))


def bam(scene: Scene) -> DrawnBias:
    """Draw BAM; its exponent is negative at times, which epsilon allows."""
    draw, heads = scene.draw, scene.sizes.heads
    alpha, a = scene.per_head(-2, 0.5)
    epsilon = draw.one_of((0.0, 1e-5, 1e-2))
    negative = epsilon == 1e-2 and draw.chance(0.3)
    exponents = draw.numbers.uniform(-1.0 if negative else 0.2, 2.0, heads)
    beta, b = scene.parameter(exponents)
    mu, m = scene.parameter(np.round(draw.normal(heads) * 3, draw.integer(0, 2)))
    result = biases.bam(scene.distance, column(a), column(b), column(m), epsilon)
    passed = {"alpha": alpha, "beta": beta, "mu": mu}
    if epsilon == 0.0 or negative:  # the derivative at distance mu may be infinite
        passed = {}
        if scene.learned:
            return kerple_log(scene)
    return _learned(scene, passed, result, na.BAM(alpha, beta, mu, epsilon))


def sandwich(scene: Scene) -> DrawnBias:
    """Draw Sandwich, with its published strengths or others."""
    heads, dimension = scene.sizes.heads, 2 * scene.draw.integer(1, 16)
    if scene.learned or scene.draw.chance(0.5):
        lambdas, numbers = scene.per_head(-2, 0.5)
        bias, passed = na.Sandwich(heads, dimension, lambdas), {"lambdas": lambdas}
    else:
        numbers = np.array([heads / (8.0 * h) for h in range(1, heads + 1)])
        bias, passed = na.Sandwich(heads, dimension), {}
    result = biases.sandwich(scene.distance, column(numbers), dimension)
    return _learned(scene, passed, result, bias)


def t5(scene: Scene) -> DrawnBias:
    """Draw T5's buckets."""
    draw, both = scene.draw, not scene.places.rule.causal or scene.draw.chance(0.5)
    buckets, most = draw.one_of((4, 8, 32)), draw.integer(20, 300)
    values, numbers = scene.parameter(3 * draw.normal(scene.sizes.heads, buckets))
    index = biases.t5_buckets(scene.places.pairs.distance, buckets, most, bidirectional=both)
    parameters = scene.learn("values", values, by_index(index, numbers.shape))
    return DrawnBias(na.T5(values, both, most), _look_up(numbers, index), parameters)


def _look_up(table: Floats, index: NDArray[np.int64]) -> Floats:
    looked: Floats = table[:, np.clip(index, 0, table.shape[1] - 1)[:, 0]].swapaxes(0, 1)
    return looked


def table(scene: Scene) -> DrawnBias:
    """Draw a table that covers all distances, or those behind the queries."""
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
    numbers = draw.normal(scene.sizes.heads, size) * draw.power(-1, 1) + decay
    if draw.chance(0.2):
        numbers[draw.numbers.random(numbers.shape) < 0.1] = -np.inf
    passed, numbers = scene.parameter(numbers)
    index = d - begin
    parameters = scene.learn("table", passed, by_index(index, numbers.shape))
    return DrawnBias(na.DistanceTable(passed, begin), _look_up(numbers, index), parameters)


def function(scene: Scene) -> DrawnBias:
    """Draw a stranger's function of distance: -a sqrt |d|, a in front of every head."""
    strength, numbers = scene.per_head(-2, 0.5)
    bias = na.DistanceFunction(_root(strength), scene.sizes.heads)
    partial = -np.sqrt(np.abs(scene.distance))
    parameters = scene.learn("strength", strength, over_heads(partial))
    return DrawnBias(bias, column(numbers) * partial, parameters)


def _root(strength: Any) -> Callable[[Floats], Any]:
    def root(distance: Floats) -> Any:
        if isinstance(strength, torch.Tensor):
            return -strength[:, None] * torch.from_numpy(np.sqrt(np.abs(distance)))
        return -np.asarray(strength, np.float64)[:, None] * np.sqrt(np.abs(distance))

    return root
