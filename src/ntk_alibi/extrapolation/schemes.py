"""Position schemes of the study's decoder: what `attention` gets beside queries, keys and values.

Each layer has a scheme of its own. Formulas stand in the bias and rotary objects, what keeps
learned parameters in range in torch/learned_bias.py; here is what a scheme uses, where it begins,
and how it is stretched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from ntk_alibi.biases.alibi import ALiBi
from ntk_alibi.biases.bam import BAM
from ntk_alibi.biases.kerple import KerpleLog, KerplePower
from ntk_alibi.biases.sandwich import Sandwich
from ntk_alibi.biases.slopes import alibi_slopes
from ntk_alibi.positions.rotary import XPOS, RoPE
from ntk_alibi.scaling import NTK, Interpolation
from ntk_alibi.torch.learned_bias import (
    FixedSlopes,
    LearnedBAM,
    LearnedForgetGates,
    LearnedKerpleLog,
    LearnedKerplePower,
    LearnedSlopes,
)
from ntk_alibi.training.steeper import SteepenFlattest

#: Training length times flattest slope, which decides how far ALiBi reaches: 2 to 4 in its authors'
#: trainings, 8 in BLOOM. Slopes of short trainings are made as steep as this product asks for.
REACH = 4.0


@dataclass(frozen=True)
class AttentionView:
    """How a trained model reads what may be longer than what it was trained on.

    Attributes:
        window: tokens that a query sees, itself included.
        causal_block: a query sees the tokens of its own block of so many and of the previous one.
        log_n: the training length, for log-n scaling.
        scaling: stretches the scheme: an `Interpolation`, or an `NTK` where it has one.
    """

    window: int | None = None
    causal_block: int | None = None
    log_n: int | None = None
    scaling: Any = None


@dataclass(frozen=True)
class LayerShape:
    """Where a scheme works.

    Attributes:
        heads: of the layer.
        hidden_size: of the layer.
        train_length: tokens.
    """

    heads: int
    hidden_size: int
    train_length: int

    @property
    def head_dim(self) -> int:
        """Of queries and keys."""
        return self.hidden_size // self.heads

    @property
    def slopes(self) -> torch.Tensor:
        """The standard slopes, made steep enough for the training length; (heads,)."""
        flattest = float(alibi_slopes(self.heads).min())
        factor = max(1.0, REACH / (self.train_length * flattest))
        return torch.tensor(alibi_slopes(self.heads, SteepenFlattest(factor)))


class Positions(nn.Module, ABC):
    """What a layer hands to `attention`, so that it knows where tokens are."""

    #: Kinds of scalings that can stretch it.
    scalings: ClassVar[tuple[type, ...]] = ()

    def __init__(self, place: LayerShape) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Keywords of `attention`.

        Args:
            hidden: (rows, length, hidden_size), of which queries and keys are made.
            scaling: None, or one of `scalings`.
        """


class NoPositions(Positions):
    """The causal mask alone tells where tokens are."""

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """See `Positions`."""
        return {}


class ALiBiPositions(Positions):
    """ALiBi as published, but steeper for short trainings."""

    scalings = (Interpolation, NTK)
    slopes: nn.Module

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.slopes = FixedSlopes(place.slopes)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """See `Positions`."""
        slopes = self.slopes()
        if scaling is not None:
            exponents = -np.log2(slopes.detach().double().numpy())
            stretched = np.exp2(-scaling.scale_exponents(exponents))
            slopes = torch.from_numpy(stretched.astype(np.float32))
        return {"bias": ALiBi(len(slopes), slopes=slopes)}


class LearnedALiBiPositions(ALiBiPositions):
    """ALiBi whose slopes are trained, too."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.slopes = LearnedSlopes(place.slopes)


class KerplePowerPositions(Positions):
    """KERPLE's power kernel."""

    scalings = (Interpolation,)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = LearnedKerplePower(place.heads)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """See `Positions`."""
        bias = self.bias()
        if scaling is not None:
            bias = KerplePower(bias.r1 * scaling.factor**-bias.r2, bias.r2)
        return {"bias": bias}


class KerpleLogPositions(Positions):
    """KERPLE's logarithmic kernel."""

    scalings = (Interpolation,)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = LearnedKerpleLog(place.heads)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """See `Positions`."""
        bias = self.bias()
        if scaling is not None:
            bias = KerpleLog(bias.r1, bias.r2 / scaling.factor)
        return {"bias": bias}


class SandwichPositions(Positions):
    """Sandwich, of which nothing is learned."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = Sandwich(place.heads)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """See `Positions`."""
        return {"bias": self.bias}


class BAMPositions(Positions):
    """BAM, which begins as the ALiBi above."""

    scalings = (Interpolation,)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = LearnedBAM(place.heads)
        with torch.no_grad():
            self.bias.log_alpha.copy_(place.slopes.log())

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """See `Positions`."""
        bias = self.bias()
        if scaling is not None:
            bias = BAM(bias.alpha / scaling.factor, bias.beta, bias.mu * scaling.factor)
        return {"bias": bias}


class ForgetGatePositions(Positions):
    """FoX: forget gates."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = LearnedForgetGates(place.hidden_size, place.heads)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """See `Positions`."""
        return {"bias": self.bias(hidden)}


class RotaryPositions(Positions):
    """RoPE with the published base."""

    scalings = (Interpolation, NTK)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.rotary = RoPE(place.head_dim)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """See `Positions`."""
        return {"rotary": self.rotary if scaling is None else self.rotary.stretched(scaling)}


class XposPositions(Positions):
    """XPOS, whose published scale_base of half the training length is ours, too."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.rotary = XPOS(place.head_dim, scale_base=place.train_length / 2)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """See `Positions`."""
        return {"rotary": self.rotary}


SCHEMES: dict[str, type[Positions]] = {
    "none": NoPositions,
    "alibi": ALiBiPositions,
    "learned-slopes": LearnedALiBiPositions,
    "kerple-power": KerplePowerPositions,
    "kerple-log": KerpleLogPositions,
    "sandwich": SandwichPositions,
    "xpos": XposPositions,
    "rope": RotaryPositions,
    "bam": BAMPositions,
    "fox": ForgetGatePositions,
}
