"""Slopes and rounding of the bias of a model family."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.scaling import Scaling


@dataclass(frozen=True)
class SlopeRule(ModelSlopes):
    """The rule by which a model family computes its slopes, as tensors."""

    def slopes(self, scaling: Scaling | None, lengths: NDArray[np.int64] | None) -> torch.Tensor:
        """Return the slopes up to a knee as `ModelSlopes.numbers` has them."""
        return torch.from_numpy(self.numbers(scaling, lengths))

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
