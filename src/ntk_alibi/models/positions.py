"""Position schemes of the study's decoder: modules that say what `attention` gets beside q, k and v.

Each layer has one of its own. What is learned is kept in range by the modules of torch/; what the
names mean stands in docs/formulas.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from ntk_alibi.bias import ALiBi
from ntk_alibi.scaling import NTK, Interpolation
from ntk_alibi.slopes import alibi_slopes
from ntk_alibi.torch.alibi_attention import FixedSlopes, LearnedSlopes
from ntk_alibi.models.train import Steeper

@dataclass(frozen=True)
class View:
    """How a trained model reads what may be longer than it has been trained on.

    Attributes:
        window: tokens that a query sees, itself included.
        causal_block: a query sees the tokens of its own block of so many and of the previous one.
        log_n: the training length, for log-n scaling.
        scaling: stretches positions; an Interpolation, or an NTK where the scheme has one.
    """

    window: int | None = None
    causal_block: int | None = None
    log_n: int | None = None
    scaling: Any = None


class Positions(nn.Module, ABC):
    """What a layer gives to `attention` so that it knows where tokens are."""

    #: Kinds of scalings it can be read with.
    scalings: ClassVar[tuple[type, ...]] = ()

    def __init__(self, heads: int, head_dim: int, train_length: int) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        """Keywords of `attention`.

        Args:
            hidden: (rows, length, hidden_size), of which queries and keys are made.
            scaling: None, or one of `scalings`.
        """


class NoPositions(Positions):
    """Nothing but the causal mask."""

    def forward(self, hidden: torch.Tensor, scaling: Any) -> dict[str, Any]:
        return {}


class Slopes(Positions):
    scalings = (Interpolation, NTK)

    def __init__(self, heads, head_dim, train_length):
        super().__init__(heads, head_dim, train_length)
        slopes = torch.from_numpy(alibi_slopes(heads, Steeper(max(1.0, 8.0*256/ train_length))).copy())
        self.slopes = self.kind(slopes)

    def forward(self, hidden, scaling):
        slopes = self.slopes()
        if scaling is not None:
            e = -slopes.detach().double().log2().numpy()
            slopes = torch.from_numpy(np.exp2(-scaling.scale_exponents(e)).astype(np.float32))
        return {"bias": ALiBi(len(slopes), slopes=slopes)}

class Fixed(Slopes):
    kind = FixedSlopes
class Learned(Slopes):
    kind = LearnedSlopes
SCHEMES = {"none": NoPositions, "alibi": Fixed, "learned": Learned}
