"""Cases of scalings: weights of heads and wrong arguments.

The key of a case is the name of its class. The fuzzer and
`tests/scaling/test_conformance.py` are made from it. Weights are written anew from
docs/formulas.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.wrong_values import NO_INTEGER, NO_NUMBER

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScalingCase:
    """A scaling that changes exponents to e_h + t_h log2(a).

    Attributes:
        weights: t_h of exponents (heads,).
        dynamic: whether a = max(rate n / train_length, 1), not the number `factor`.
    """

    weights: Callable[[Floats], Floats]
    dynamic: bool = False

    @property
    def right(self) -> dict[str, Any]:
        """Arguments that the class takes."""
        return {"rate": 2.0, "train_length": 20} if self.dynamic else {"factor": 4.0}

    @property
    def all_wrong(self) -> dict[str, tuple[Any, ...]]:
        """Wrong values of every argument."""
        if self.dynamic:
            return {"rate": (*NO_NUMBER, None, 0, -1), "train_length": (*NO_INTEGER, 0)}
        return {"factor": (*NO_NUMBER, None, 0.5, 0, -2.0)}


def interpolation(e: Floats) -> Floats:
    """Return 1."""
    return np.ones_like(e)


def ntk(e: Floats) -> Floats:
    """Return (e_h - e_min) / (e_max - e_min); 1 for equal exponents."""
    if e.max() == e.min():
        return np.ones_like(e)
    share: Floats = (e - e.min()) / (e.max() - e.min())
    return share


def flat_heads(e: Floats) -> Floats:
    """Return 1 for the ceil(H / 4) greatest exponents, and 0 for others."""
    count = math.ceil(len(e) / 4)
    return np.isin(np.arange(len(e)), np.argsort(-e, kind="stable")[:count]).astype(np.float64)


def max_bias(e: Floats) -> Floats:
    """Return e_h / e_max."""
    share: Floats = e / e.max()
    return share


SCALING_CASES = {
    "Interpolation": ScalingCase(interpolation),
    "NTK": ScalingCase(ntk),
    "FlatHeads": ScalingCase(flat_heads),
    "MaxBias": ScalingCase(max_bias),
    "DynamicInterpolation": ScalingCase(interpolation, dynamic=True),
    "DynamicNTK": ScalingCase(ntk, dynamic=True),
    "DynamicFlatHeads": ScalingCase(flat_heads, dynamic=True),
}
