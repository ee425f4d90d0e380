"""Position schemes of the study's decoder.

A scheme provides the arguments of `attention` other than queries, keys and values; each layer has a
separate instance. The bias and rotary objects contain the formulas, and torch/learned_bias.py keeps
learned parameters in range. This file defines which of them a scheme uses, its initial parameters,
and how a scaling changes it.

Learned biases start as ALiBi with `LayerShape.slopes`, or as near to it as their form allows, so
that all schemes that can choose their reach begin with the same one. No positions, RoPE, XPOS and
Sandwich have no parameter for this. BAM also has rows that start as its authors' code does.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from ntk_alibi import (
    BAM,
    NTK,
    XPOS,
    ALiBi,
    FlatHeads,
    Interpolation,
    KerpleLog,
    KerplePower,
    LogN,
    RoPE,
    Sandwich,
    alibi_slopes,
    log_n_scale,
)
from ntk_alibi.torch.learned_bias import (
    FixedSlopes,
    LearnedBAM,
    LearnedForgetGates,
    LearnedKerpleLog,
    LearnedKerplePower,
    LearnedSlopes,
)
from studies.steeper import SteepenFlattest

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
        log_n: log-n scaling of the scores before the bias.
        scaling: scaling of the scheme, an instance of one of its `Positions.scalings`.
    """

    window: int | None = None
    causal_block: int | None = None
    log_n: LogN | None = None
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

    #: Whether the scheme multiplies its scores by a learned log n itself.
    learns_log_n: ClassVar[bool] = False

    def __init__(self, place: LayerShape) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the keyword arguments of `attention`.

        Args:
            hidden: inputs of the query and key projections, (rows, length, hidden_size).
            view: options of the forward pass, whose scaling is None or one of `scalings`.
        """

    def queries(self, query: torch.Tensor, view: AttentionView) -> torch.Tensor:
        """Return the queries, (rows, heads, length, head_dim), as the scheme changes them."""
        return query


class NoPositions(Positions):
    """No position scheme: only the causal mask depends on positions."""

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        return {}


class ALiBiPositions(Positions):
    """ALiBi as published, but with steeper slopes for short training lengths."""

    scalings = (Interpolation, NTK, FlatHeads)
    slopes: nn.Module

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.slopes = FixedSlopes(place.slopes)

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        slopes = self.slopes()
        if view.scaling is not None:
            exponents = -np.log2(slopes.detach().double().numpy())
            stretched = np.exp2(-view.scaling.scale_exponents(exponents))
            slopes = torch.from_numpy(stretched.astype(np.float32))
        return {"bias": ALiBi(len(slopes), slopes=slopes)}


class LearnedALiBiPositions(ALiBiPositions):
    """ALiBi with learned slopes, at first as in `ALiBiPositions`."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.slopes = LearnedSlopes(place.slopes)


class KerplePowerPositions(Positions):
    """KERPLE's power kernel, at first -m |d|: ALiBi."""

    scalings = (Interpolation,)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = LearnedKerplePower(place.heads, r1=place.slopes, r2=1.0)

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        bias = self.bias()
        if (scaling := view.scaling) is not None:
            bias = KerplePower(bias.r1 * scaling.factor**-bias.r2, bias.r2)
        return {"bias": bias}


class KerpleLogPositions(Positions):
    """KERPLE's logarithmic kernel, at first -m L log(1 + d / L) with training length L.

    Its slope at distance 0 is ALiBi's. With any parameters the kernel flattens with distance: at
    first it has 81 % of ALiBi's bias at half the training length, and 69 % (log 2) at the training
    length.
    """

    scalings = (Interpolation,)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        length = place.train_length
        self.bias = LearnedKerpleLog(place.heads, r1=place.slopes * length, r2=1.0 / length)

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        bias = self.bias()
        if (scaling := view.scaling) is not None:
            bias = KerpleLog(bias.r1, bias.r2 / scaling.factor)
        return {"bias": bias}


class SandwichPositions(Positions):
    """Sandwich, which has no learned parameters."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = Sandwich(place.heads)

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        return {"bias": self.bias}


class BAMPositions(Positions):
    """BAM, at first with the slopes of `ALiBiPositions`."""

    scalings = (Interpolation,)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.bias = self._first(place)

    def _first(self, place: LayerShape) -> LearnedBAM:
        """Return the learned bias with its initial parameters."""
        return LearnedBAM(place.heads, alpha=place.slopes)

    def _bias(self, view: AttentionView) -> BAM:
        """Return the bias, with distances divided by the factor of an interpolation."""
        bias: BAM = self.bias()
        if (scaling := view.scaling) is not None:
            bias = BAM(bias.alpha / scaling.factor, bias.beta, bias.mu * scaling.factor)
        return bias

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        return {"bias": self._bias(view)}


class FlatBAMPositions(BAMPositions):
    """BAM with the flat prior that its authors' code starts with: alpha = 1, beta = 0."""

    def _first(self, place: LayerShape) -> LearnedBAM:
        """Return the learned bias with its initial parameters."""
        return LearnedBAM(place.heads, alpha=1.0, beta=0.0)


class FlatBAMLogNPositions(FlatBAMPositions):
    """The flat BAM with Scalable-Softmax (SSMax), the form of its authors' experiments.

    Formula::

        score_ij = s_h log n_i (scale q_i.k_j + bias(i, j)),  n_i keys that query i sees

    The strengths s are learned and start at 1, as in the authors' code. Queries are multiplied by
    the factor. A table over distance has no factors of queries, so the bias becomes dense.
    """

    learns_log_n = True

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.strength = nn.Parameter(torch.ones(place.heads))

    def _factors(self, length: int, view: AttentionView) -> torch.Tensor:
        """Return s log n for each query, (heads, length).

        n is at least 2 here: a query that sees one key has one weight, 1, with any score.
        """
        mask: dict[str, Any] = {"window": view.window, "causal_block": view.causal_block}
        log_n = math.log(2) * log_n_scale(length, length, 2, **mask)
        return self.strength[:, None] * torch.from_numpy(log_n)

    def queries(self, query: torch.Tensor, view: AttentionView) -> torch.Tensor:
        """Return the queries times their factors."""
        return (query * self._factors(query.shape[2], view)[..., None]).to(query.dtype)

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        length = hidden.shape[1]
        table = self._bias(view).over(0, length - 1, hidden).float()
        positions = torch.arange(length)
        distance = (positions[:, None] - positions).clamp(min=0)  # keys ahead are hidden
        return {"bias": table[:, distance] * self._factors(length, view)[..., None]}


class ForgetGatePositions(Positions):
    """Forget gates of the Forgetting Transformer (FoX), at first exp(-m) everywhere: ALiBi."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        logits = -place.slopes.double().expm1().log()  # sigmoid(logits) = exp(-m)
        self.bias = LearnedForgetGates(place.hidden_size, place.heads, bias=logits)
        nn.init.zeros_(self.bias.linear.weight)

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        return {"bias": self.bias(hidden)}


class RotaryPositions(Positions):
    """RoPE with the published base."""

    scalings = (Interpolation, NTK)

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.rotary = RoPE(place.head_dim)

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        scaling = view.scaling
        return {"rotary": self.rotary if scaling is None else self.rotary.stretched(scaling)}


class XposPositions(Positions):
    """XPOS with a scale_base of half the training length, as published."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.rotary = XPOS(place.head_dim, scale_base=place.train_length / 2)

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
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
    "bam-flat": FlatBAMPositions,
    "bam-flat-ssmax": FlatBAMLogNPositions,
    "fox": ForgetGatePositions,
}
