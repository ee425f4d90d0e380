"""Slopes and rounding of the bias of a model family."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ntk_alibi.biases.slopes import scaled_slopes, with_axes
from ntk_alibi.scaling import Scaling, without_knee
from ntk_alibi.scaling.static import ScaledExponents


@dataclass(frozen=True)
class SlopeRule:
    """The rule by which a model family computes its slopes.

    Attributes:
        heads: number of query heads.
        exponent_factor: multiplies the standard exponents, before any scaling.
        slope_divisor: divides the slopes, after the scaling.
        counts_holes: whether distances count padding between real tokens.
    """

    heads: int
    exponent_factor: float = 1.0
    slope_divisor: float = 1.0
    counts_holes: bool = False

    def slopes(self, scaling: Scaling | None, lengths: NDArray[np.int64] | None) -> torch.Tensor:
        """Return float32 slopes, (1 or batch, heads, 1 or queries), for lengths of the scaling.

        They are those up to a knee.
        """
        scaling, _ = without_knee(scaling)
        if self.exponent_factor != 1.0:
            scaling = ScaledExponents(scaling, self.exponent_factor)
        slopes = torch.from_numpy(scaled_slopes(self.heads, scaling, lengths)) / self.slope_divisor
        result: torch.Tensor = with_axes(slopes)
        return result

    def slopes_on(
        self, device: torch.device, scaling: Scaling | None, lengths: NDArray[np.int64] | None
    ) -> torch.Tensor:
        """Return `slopes` for layers whose tensors are on a device.

        Slopes that depend on no lengths are copied to other devices than the CPU once.
        """
        if device.type != "cpu" and lengths is None:
            with contextlib.suppress(TypeError):  # the scaling has no hash
                known: Any = scaling
                return _kept_slopes(self, device, known)
        return self.slopes(scaling, lengths).to(device)

    def rounded_bias(
        self,
        scaling: Scaling | None,
        lengths: NDArray[np.int64] | None,
        positions: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return the bias of keys at positions (1 or batch, keys), with transformers' rounding.

        It is float32 (1 or batch, heads, 1, keys); slopes, positions and their products were
        rounded to bfloat16, and the result to the model's dtype.
        """
        slopes = replace(self, slope_divisor=1.0).slopes(scaling, lengths).to(positions.device)
        product = slopes.bfloat16() * positions[:, None, :].bfloat16()
        return (product.to(dtype) / self.slope_divisor).float()[:, :, None]


@functools.lru_cache(maxsize=256)
def _kept_slopes(rule: SlopeRule, device: torch.device, scaling: Scaling | None) -> torch.Tensor:
    with torch.inference_mode(False):  # autograd could not save tensors of that mode later
        return rule.slopes(scaling, None).to(device)
