"""How a model family forms the slopes of its bias."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ntk_alibi.biases.slopes import scaled_slopes
from ntk_alibi.scaling import Floats, Scaling


@dataclass(frozen=True)
class SlopeRule:
    """How a model family forms its bias.

    Attributes:
        heads: of queries.
        exponent_factor: of the standard exponents, before any scaling.
        slope_divisor: of the slopes, after it.
        counts_holes: whether distances count padding between real tokens.
    """

    heads: int
    exponent_factor: float = 1.0
    slope_divisor: float = 1.0
    counts_holes: bool = False

    def slopes(self, scaling: Scaling | None, lengths: NDArray[np.int64] | None) -> torch.Tensor:
        """Float32 (1 or batch, heads, 1 or queries); lengths as the scaling's `per` asks."""
        if self.exponent_factor != 1.0:
            scaling = ScaledExponents(scaling, self.exponent_factor)
        slopes = torch.from_numpy(scaled_slopes(self.heads, scaling, lengths)) / self.slope_divisor
        if slopes.ndim == 1:
            return slopes[None, :, None]
        return slopes[:, :, None] if slopes.ndim == 2 else slopes

    def rounded_bias(
        self,
        scaling: Scaling | None,
        lengths: NDArray[np.int64] | None,
        positions: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Of keys at positions (1 or batch, keys), with transformers' rounding in a model's dtype.

        Float32 (1 or batch, heads, 1, keys): slopes, positions and their products in bfloat16.
        """
        slopes = replace(self, slope_divisor=1.0).slopes(scaling, lengths).to(positions.device)
        product = slopes.bfloat16() * positions[:, None, :].bfloat16()
        return (product.to(dtype) / self.slope_divisor).float()[:, :, None]


@dataclass(frozen=True)
class ScaledExponents:
    """A scaling, or none, of exponents that are a factor of the standard ones."""

    scaling: Scaling | None
    factor: float

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        """See `Scaling`."""
        exponents = exponents * self.factor
        if self.scaling is None:
            return exponents
        return self.scaling.scale_exponents(exponents, lengths)
