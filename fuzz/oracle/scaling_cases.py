"""Cases of scalings: weights of heads, options to draw and wrong arguments.

The key of a case is the name of its class. The fuzzer and
`tests/scaling/test_conformance.py` are made from it. Weights are written anew from
docs/formulas.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.wrong_values import NO_CHOICE, NO_INTEGER, NO_NUMBER

Floats = NDArray[np.float64]

NO_LAYERS: tuple[Any, ...] = (3, "1", [], [-1], [0.5], [None], object())
NO_SHARE = (*NO_NUMBER, None, 0.0, -0.5, 1.5)


@dataclass(frozen=True)
class ScalingCase:
    """A scaling that changes exponents to e_h + t_h log2(a).

    Attributes:
        weights: t_h of exponents (heads,); options of the class are its keywords.
        dynamic: whether a = max(rate n / train_length, 1), not the number `factor`.
        options: by name, values to draw from; the first ones make an example.
        wrong: by option, values that the class must refuse.
    """

    weights: Callable[..., Floats]
    dynamic: bool = False
    options: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    wrong: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def right(self) -> dict[str, Any]:
        """Arguments that the class takes."""
        factor = {"rate": 2.0, "train_length": 20} if self.dynamic else {"factor": 4.0}
        return factor | {name: values[0] for name, values in self.options.items()}

    @property
    def all_wrong(self) -> dict[str, tuple[Any, ...]]:
        """Wrong values of every argument."""
        factor: dict[str, tuple[Any, ...]] = {"factor": (*NO_NUMBER, None, 0.5, 0, -2.0)}
        if self.dynamic:
            rates = (*NO_NUMBER, None, 0, -1)
            factor = {"rate": rates, "train_length": (*NO_INTEGER, 0), "per": NO_CHOICE}
        return factor | {"layers": NO_LAYERS} | self.wrong


def interpolation(e: Floats) -> Floats:
    """Return 1."""
    return np.ones_like(e)


def ntk(e: Floats) -> Floats:
    """Return (e_h - e_min) / (e_max - e_min); 1 for equal exponents."""
    if e.max() == e.min():
        return np.ones_like(e)
    share: Floats = (e - e.min()) / (e.max() - e.min())
    return share


def flat_heads(e: Floats, share: float) -> Floats:
    """Return 1 for the ceil(share H) greatest exponents, at least one, and 0 for others."""
    count = max(math.ceil(Fraction(str(share)) * len(e)), 1)
    return np.isin(np.arange(len(e)), np.argsort(-e, kind="stable")[:count]).astype(np.float64)


def max_bias(e: Floats) -> Floats:
    """Return e_h / e_max."""
    share: Floats = e / e.max()
    return share


SHARES = {"share": (0.5, 0.25, 0.1, 1.0)}

SCALING_CASES = {
    "Interpolation": ScalingCase(interpolation),
    "NTK": ScalingCase(ntk),
    "FlatHeads": ScalingCase(flat_heads, options=SHARES, wrong={"share": NO_SHARE}),
    "MaxBias": ScalingCase(max_bias),
    "DynamicInterpolation": ScalingCase(interpolation, dynamic=True),
    "DynamicNTK": ScalingCase(ntk, dynamic=True),
    "DynamicFlatHeads": ScalingCase(
        flat_heads, dynamic=True, options=SHARES, wrong={"share": NO_SHARE}
    ),
}
