"""Position schemes of the study's decoder.

A scheme provides the arguments of `attention` other than queries, keys and values; each layer has a
separate instance. The bias and rotary objects contain the formulas, and torch/learned_bias.py keeps
learned parameters in range. This file defines which of them a scheme uses, its initial parameters,
and how a scaling changes it.
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

#: Least product of training length and flattest slope, which determines the reach of ALiBi: it is 2
#: to 4 in the trainings of ALiBi's authors and 8 in BLOOM. Slopes are made steeper for shorter
#: training lengths.
REACH = 4.0


@dataclass(frozen=True)
class AttentionView:
    """Attention options and scaling with which a trained model reads texts, also longer ones.

    Attributes:
        window: number of tokens that a query sees, itself included; None for all.
        causal_block: block size; a query sees its block up to itself and the previous block.
        log_n: training length for log-n scaling.
        scaling: scaling of the scheme: an `Interpolation`, or an `NTK` if the scheme supports it.
    """

    window: int | None = None
    causal_block: int | None = None
    log_n: int | None = None
    scaling: Any = None


@dataclass(frozen=True)
class LayerShape:
    """The shape of a layer, from which a scheme is built.

    Attributes:
        heads: number of attention heads of the layer.
        hidden_size: hidden size of the layer.
        train_length: training length in tokens.
    """

    heads: int
    hidden_size: int
    train_length: int

    @property
    def head_dim(self) -> int:
        """Head dimension of queries and keys."""
        return self.hidden_size // self.heads

    @property
    def slopes(self) -> torch.Tensor:
        """Standard slopes, made steep enough for the training length; (heads,)."""
        flattest = float(alibi_slopes(self.heads).min())
        factor = max(1.0, REACH / (self.train_length * flattest))
        return torch.tensor(alibi_slopes(self.heads, SteepenFlattest(factor)))


class Positions(nn.Module, ABC):
    """Base class of position schemes, which provide the position arguments of `attention`."""

    #: Types of scalings that the scheme supports.
    scalings: ClassVar[tuple[type, ...]] = ()

    def __init__(self, place: LayerShape) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Return the keyword arguments of `attention`.

        Args:
            hidden: inputs of the query and key projections, (rows, length, hidden_size).
            scaling: None, or an instance of one of `scalings`.
        """


class NoPositions(Positions):
    """No position scheme: only the causal mask depends on positions."""

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        return {}


class ALiBiPositions(Positions):
    """ALiBi as published, but with steeper slopes for short training lengths."""

    scalings = (Interpolation, NTK)
    slopes: nn.Module

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.slopes = FixedSlopes(place.slopes)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        slopes = self.slopes()
        if scaling is not None:
            exponents = -np.log2(slopes.detach().double().numpy())
            stretched = np.exp2(-scaling.scale_exponents(exponents))
            slopes = torch.from_numpy(stretched.astype(np.float32))
        return {"bias": ALiBi(len(slopes), slopes=slopes)}


class LearnedALiBiPositions(ALiBiPositions):
    """ALiBi with learned slopes."""

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
        """Return the arguments of `attention`; see `Positions`."""
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
        """Return the arguments of `attention`; see `Positions`."""
        bias = self.bias()
        if scaling is not None:
            bias = KerpleLog(bias.r1, bias.r2 / scaling.factor)
        return {"bias": bias}


class SandwichPositions(Positions):
    """Sandwich, which has no learned parameters."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = Sandwich(place.heads)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        return {"bias": self.bias}


class BAMPositions(Positions):
    """BAM, initialised to the slopes of `ALiBiPositions`."""

    scalings = (Interpolation,)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = LearnedBAM(place.heads)
        with torch.no_grad():
            self.bias.log_alpha.copy_(place.slopes.log())

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        bias = self.bias()
        if scaling is not None:
            bias = BAM(bias.alpha / scaling.factor, bias.beta, bias.mu * scaling.factor)
        return {"bias": bias}


class ForgetGatePositions(Positions):
    """Forget gates of the Forgetting Transformer (FoX)."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = LearnedForgetGates(place.hidden_size, place.heads)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        return {"bias": self.bias(hidden)}


class RotaryPositions(Positions):
    """RoPE with the published base."""

    scalings = (Interpolation, NTK)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.rotary = RoPE(place.head_dim)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        return {"rotary": self.rotary if scaling is None else self.rotary.stretched(scaling)}


class XposPositions(Positions):
    """XPOS with a scale_base of half the training length, as published."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.rotary = XPOS(place.head_dim, scale_base=place.train_length / 2)

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
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
