"""ALiBi in all its forms, and BiALiBi."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ntk_alibi as na
from fuzz.draw import Draw
from fuzz.drawn.bias import DrawnBias, Scene, column, over_heads, to_shape
from fuzz.oracle import biases, slopes
from fuzz.oracle.scaling_cases import SCALING_CASES, interpolation

Floats = NDArray[np.float64]


class Halved:
    """A user's scaling, which halves every slope."""

    def scale_exponents(self, exponents: Floats, lengths: Any = None) -> Floats:
        """Return exponents one greater."""
        del lengths
        return exponents + 1.0


def drawn_scaling(draw: Draw, name: str) -> tuple[Any, Callable[[Floats], Floats]]:
    """Draw a scaling of `SCALING_CASES`; return it and the weights of its heads."""
    case, make = SCALING_CASES[name], getattr(na, name)
    if case.dynamic:
        length = draw.one_of((1, 7, 50, 2048, draw.integer(1, 4000)))
        return make(draw.power(-1, 2), length), case.weights
    return make(draw.one_of((1.0, 4.0, draw.power(0, 4)))), case.weights


def scaling_and_slopes(scene: Scene) -> tuple[Any, Any]:
    """Draw a scaling; return it and a function of head counts that gives its slopes."""
    draw = scene.draw
    name = draw.one_of(("none", "halved", *SCALING_CASES))
    scaling: Any = Halved() if name == "halved" else None
    weights: Callable[[Floats], Floats] = interpolation
    factor: Any = 2.0 if name == "halved" else 1.0
    if name in SCALING_CASES:
        scaling, weights = drawn_scaling(draw, name)
        factor = getattr(scaling, "factor", None) or slopes.dynamic_factor(
            scaling.rate, _lengths(scene), scaling.train_length
        )

    def for_heads(heads: int) -> Floats:
        entries = slopes.scaled(e := slopes.exponents(heads), weights(e), factor)
        return entries.reshape(
            *([1] * (entries.ndim == 1)), *entries.shape, *[1] * (entries.ndim < 3)
        )

    return scaling, for_heads


def _lengths(scene: Scene) -> Any:
    """Count real keys of rows, or with packed segments of each query's text."""
    pairs, sizes = scene.places.pairs, scene.sizes
    real: Any = np.ones((1, sizes.keys), np.bool_) if pairs.real is None else pairs.real
    if pairs.segment_ids is not None:
        return (pairs.same_segment[:, 0] & real[:, None]).sum(axis=2)
    return real.sum(axis=1)


def _sides(scene: Scene) -> str:
    choices = ["symmetric", "halves"] + ["causal"] * (3 * scene.places.rule.causal)
    return scene.draw.one_of(choices)


def _hide(sides: str, left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Return slopes with infinity on the sides that are hidden."""
    left, right = left.copy(), right.copy()
    heads = left.shape[1]
    if sides == "causal":
        right[:] = np.inf
    if sides == "halves":
        left[:, heads - heads // 2 :] = np.inf
        right[:, : heads - heads // 2] = np.inf
    return left, right


def _finished(scene: Scene, left: Floats, right: Floats, exempt: int) -> tuple[Floats, Any]:
    values, partials = biases.linear(scene.distance, left[..., None], right[..., None])
    if exempt:
        values, partials = biases.with_exempt(values, partials, _exempt(scene, exempt), 0.0)
    return values, partials


def _exempt(scene: Scene, count: int) -> NDArray[np.bool_]:
    pairs = scene.places.pairs
    exempt: NDArray[np.bool_] = (pairs.queries < count)[:, None, :, None] | (pairs.keys < count)[
        :, None, None, :
    ]
    return exempt


def _drawn_exempt(scene: Scene) -> int:
    return scene.draw.integer(1, 4) if scene.draw.chance(0.15) else 0


def standard(scene: Scene) -> DrawnBias:
    """ALiBi with standard slopes and a scaling."""
    scaling, for_heads = scaling_and_slopes(scene)
    heads, sides, exempt = scene.sizes.heads, _sides(scene), _drawn_exempt(scene)
    counts = (heads - heads // 2, heads // 2) if sides == "halves" else (heads,)
    one = np.concatenate([for_heads(n) for n in counts if n], axis=1)
    values, _ = _finished(scene, *_hide(sides, one, one), exempt)
    passed = na.ALiBi(heads, scaling, sides=sides, exempt=exempt)  # type: ignore[arg-type]
    return DrawnBias(passed, values)


def _slopes(scene: Scene) -> tuple[Any, Floats]:
    """Draw slopes of one of the three shapes; some of them 0, negative or infinite."""
    draw, sizes = scene.draw, scene.sizes
    shapes = (
        (sizes.heads,),
        (1, sizes.heads),
        (sizes.batch, sizes.heads),
        (1, sizes.heads, sizes.queries),
        (sizes.batch, sizes.heads, sizes.queries),
    )
    entries = np.abs(draw.normal(*draw.one_of(shapes))) * draw.power(-3, 1)
    chance = draw.generator.random(entries.shape)
    entries[chance < 0.1] = 0.0
    if draw.chance(0.2):
        entries[chance > 0.8] *= -1.0
    if draw.chance(0.2):
        entries[chance > 0.9] = np.inf
    return scene.parameter(entries)


def _axes(entries: Floats) -> Floats:
    if entries.ndim == 1:
        return entries[None, :, None]
    return entries[..., None] if entries.ndim == 2 else entries


def own_slopes(scene: Scene) -> DrawnBias:
    """ALiBi with the caller's slopes."""
    passed, entries = _slopes(scene)
    sides, exempt = _sides(scene), _drawn_exempt(scene)
    values, partials = _finished(scene, *_hide(sides, _axes(entries), _axes(entries)), exempt)
    bias = na.ALiBi(scene.sizes.heads, slopes=passed, sides=sides, exempt=exempt)  # type: ignore[arg-type]
    gather = to_shape(partials["left"] + partials["right"], entries.shape)
    return DrawnBias(bias, values, scene.learn("slopes", passed, gather))


def two_slopes(scene: Scene) -> DrawnBias:
    """ALiBi with left and right slopes."""
    (left, exact_left), (right, exact_right) = _slopes(scene), _slopes(scene)
    exempt = _drawn_exempt(scene)
    values, partials = _finished(scene, _axes(exact_left), _axes(exact_right), exempt)
    pair = (left, right)
    bias = na.ALiBi(scene.sizes.heads, slopes=pair, sides="two_slopes", exempt=exempt)
    parameters = [
        *scene.learn("left", left, to_shape(partials["left"], exact_left.shape)),
        *scene.learn("right", right, to_shape(partials["right"], exact_right.shape)),
    ]
    return DrawnBias(bias, values, tuple(parameters))


def bialibi(scene: Scene) -> DrawnBias:
    """LittleBird's bias."""
    (first, one), (left, behind), (right, ahead) = (scene.per_head(-2, 1) for _ in range(3))
    values, partials = biases.linear(scene.distance, column(behind), column(ahead))
    at_first = _exempt(scene, 1)
    constant = np.where(scene.distance == 0.0, 0.0, -column(one))
    values, partials = biases.with_exempt(values, partials, at_first, constant)
    of_first = np.where(at_first & (scene.distance != 0.0), -1.0, 0.0)
    parameters = [
        *scene.learn("first", first, over_heads(of_first)),
        *scene.learn("left", left, over_heads(partials["left"])),
        *scene.learn("right", right, over_heads(partials["right"])),
    ]
    return DrawnBias(na.BiALiBi(first, left, right), values, tuple(parameters))
