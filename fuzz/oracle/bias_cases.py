"""Cases of biases with parameters per head: their draws, formulas and wrong arguments.

The key of a case is the name of its class. The fuzzer, its oracle and the tests of conformance in
`tests/biases` are made from it. Formulas are written anew from the papers, for torch in float64,
whose autograd gives the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fuzz.draw import Draw
from fuzz.wrong_values import NO_COUNT, NO_HEADS, NO_NUMBER, ones

Floats = NDArray[np.float64]
Values = dict[str, Any]

#: Heads of the examples.
HEADS = 4
FOUR = ones(HEADS)


@dataclass(frozen=True)
class BiasCase:
    """A bias that is a function of distance with parameters per head.

    Attributes:
        formula: of the distance and the parameters, tensors that broadcast, in the order of the
            class; options of the class are its keywords.
        draw: returns parameters (heads,) and options for a draw, a number of heads, and whether
            gradients are wanted, which must be finite.
        wrong: by argument, values that the class must refuse.
        also: by argument, other names that the message may have instead.
        options: options of an example of `HEADS` heads.
    """

    formula: Callable[..., torch.Tensor]
    draw: Callable[[Draw, int, bool], tuple[Values, Values]]
    wrong: dict[str, tuple[Any, ...]]
    also: dict[str, tuple[str, ...]] = field(default_factory=dict)
    options: Values = field(default_factory=dict)

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters."""
        _, *arguments = signature(self.formula).parameters.values()
        return [x.name for x in arguments if x.kind is not Parameter.KEYWORD_ONLY]

    def values(
        self, distance: Floats, parameters: dict[str, Floats], options: Values
    ) -> tuple[Floats, dict[str, Floats]]:
        """Return the bias of all pairs, and by name its partial derivatives there."""
        d = torch.from_numpy(distance)
        leaves = {
            name: torch.from_numpy(x)[None, :, None, None].repeat(len(d), 1, *d.shape[2:])
            for name, x in parameters.items()
        }
        for leaf in leaves.values():
            leaf.requires_grad_()
        bias = self.formula(d, **leaves, **options)
        partials = torch.autograd.grad(bias.sum(), list(leaves.values())) if leaves else ()
        return bias.detach().numpy(), {
            name: x.numpy() for name, x in zip(leaves, partials, strict=True)
        }


def powers(draw: Draw, heads: int, least: float, most: float) -> Floats:
    """Draw a positive value per head between two powers of ten."""
    array: Floats = 10.0 ** draw.generator.uniform(least, most, heads)
    return array


def kerple_power(d: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor) -> torch.Tensor:
    """Return -r1 |d|^r2, written so that second derivatives at 0 are no NaN."""
    return -r1 * (d != 0) * torch.where(d == 0, 1.0, d.abs()) ** r2


def _draw_kerple_power(draw: Draw, heads: int, learned: bool) -> tuple[Values, Values]:
    exponents = draw.generator.uniform(0.05, 2.0, heads)
    return {"r1": powers(draw, heads, -2, 0.5), "r2": exponents}, {}


def kerple_log(d: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor) -> torch.Tensor:
    """Return -r1 log(1 + r2 |d|)."""
    return -r1 * torch.log1p(r2 * d.abs())


def _draw_kerple_log(draw: Draw, heads: int, learned: bool) -> tuple[Values, Values]:
    return {"r1": powers(draw, heads, -2, 1), "r2": powers(draw, heads, -2, 1)}, {}


def bam(
    d: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    mu: torch.Tensor,
    *,
    epsilon: float = 1e-5,
) -> torch.Tensor:
    """Return -(alpha |d - mu| + epsilon)^beta."""
    return -((alpha * (d - mu).abs() + epsilon) ** beta)


def _draw_bam(draw: Draw, heads: int, learned: bool) -> tuple[Values, Values]:
    # at distance mu the derivative may be infinite without epsilon, or at a negative exponent
    epsilon = draw.one_of((1e-5, 1e-2) if learned else (0.0, 1e-5, 1e-2))
    negative = epsilon == 1e-2 and not learned and draw.chance(0.3)
    array = {
        "alpha": powers(draw, heads, -2, 0.5),
        "beta": draw.generator.uniform(-1.0 if negative else 0.2, 2.0, heads),
        "mu": np.round(draw.normal(heads) * 3, draw.integer(0, 2)),
    }
    return array, {"epsilon": epsilon}


def sandwich(
    d: torch.Tensor, lambdas: torch.Tensor | None = None, *, num_heads: int, dimension: int
) -> torch.Tensor:
    """Return lambda sum_k (cos(d w_k) - 1), w_k = 10000^(-2k/D); lambda = H/8h as published."""
    if lambdas is None:
        lambdas = num_heads / (8.0 * torch.arange(1, num_heads + 1).double()[:, None, None])
    waves = [torch.cos(d * 10000.0 ** (-2.0 * k / dimension)) - 1.0 for k in range(dimension // 2)]
    return lambdas * torch.stack(waves).sum(0)


def _draw_sandwich(draw: Draw, heads: int, learned: bool) -> tuple[Values, Values]:
    own = learned or draw.chance(0.5)
    array = {"lambdas": powers(draw, heads, -2, 0.5)} if own else {}
    return array, {"num_heads": heads, "dimension": 2 * draw.integer(1, 16)}


BIAS_CASES = {
    "KerplePower": BiasCase(
        kerple_power,
        _draw_kerple_power,
        {"r1": (*NO_HEADS[:-3], -FOUR, 0 * FOUR), "r2": (*NO_HEADS, -FOUR, 3 * FOUR)},
        {"r1": ("r2",)},
    ),
    "KerpleLog": BiasCase(
        kerple_log,
        _draw_kerple_log,
        {"r1": (*NO_HEADS[:-3], -FOUR), "r2": (*NO_HEADS, -FOUR, 0 * FOUR)},
        {"r1": ("r2",)},
    ),
    "BAM": BiasCase(
        bam,
        _draw_bam,
        {"beta": NO_HEADS, "mu": NO_HEADS, "epsilon": (*NO_NUMBER, -1.0, None)},
    ),
    "Sandwich": BiasCase(
        sandwich,
        _draw_sandwich,
        {
            "num_heads": NO_COUNT,
            "dimension": (*NO_COUNT, 3, 1),
            "lambdas": (*NO_HEADS[:1], *NO_HEADS[2:], -FOUR),
        },
        {"num_heads": ("lambdas",)},
        options={"num_heads": HEADS, "dimension": 16},
    ),
}
