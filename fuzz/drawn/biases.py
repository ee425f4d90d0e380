"""The choice among all biases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fuzz.drawn import distance_biases, linear_biases, other_biases
from fuzz.drawn.bias import DrawnBias, Scene
from fuzz.oracle.bias_cases import BIAS_CASES

#: A table of so many distances takes as long as the rest of a case.
MOST_DISTANCES = 4000

#: By name: how often it is drawn, and the function that draws it.
ANYWHERE: dict[str, tuple[float, Callable[[Scene], DrawnBias]]] = {
    "none": (1, other_biases.no_bias),
    "dense": (2, other_biases.dense),
    "a user's": (0.5, other_biases.foreign),
    "ALiBi": (4, linear_biases.standard),
    "ALiBi(slopes)": (2, linear_biases.own_slopes),
    "ALiBi(two_slopes)": (2, linear_biases.two_slopes),
    "BiALiBi": (1, linear_biases.bialibi),
}
OVER_DISTANCE: dict[str, tuple[float, Callable[[Scene], DrawnBias]]] = {
    **{name: (1, partial(distance_biases.of_case, name)) for name in BIAS_CASES},
    "T5": (1, distance_biases.t5),
    "DistanceTable": (1.5, distance_biases.table),
    "DistanceFunction": (1, distance_biases.function),
}
FORGET_GATES: dict[str, tuple[float, Callable[[Scene], DrawnBias]]] = {
    "ForgetGates": (2, other_biases.forget_gates)
}


def drawn_bias(scene: Scene) -> tuple[str, DrawnBias]:
    """Draw a bias that fits; return its name, too."""
    fitting = dict(ANYWHERE)
    if scene.places.span <= MOST_DISTANCES:
        fitting |= OVER_DISTANCE
    sizes, places = scene.sizes, scene.places
    if places.rule.causal and not places.explicit and sizes.queries <= sizes.keys:
        fitting |= FORGET_GATES
    name = scene.draw.weighted({name: weight for name, (weight, _) in fitting.items()})
    return name, fitting[name][1](scene)
