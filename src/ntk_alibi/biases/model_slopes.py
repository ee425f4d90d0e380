"""Slopes of the model families, as their training had them, and stretched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.biases.slopes import scaled_slopes, with_axes
from ntk_alibi.scaling import Scaling, without_knee
from ntk_alibi.scaling.static import USUAL_MAX_BIAS, ScaledExponents

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class ModelSlopes:
    """The rule by which a model computes its slopes.

    Attributes:
        heads: number of query heads of the whole model.
        max_bias: the exponent of the flattest slope for powers of two, before any scaling.
        slope_divisor: divides the slopes, after the scaling.
        counts_holes: whether distances count padding between real tokens.
    """

    heads: int
    max_bias: float = USUAL_MAX_BIAS
    slope_divisor: float = 1.0
    counts_holes: bool = False

    @classmethod
    def of_bloom(cls, heads: int) -> Self:
        """Return the rule of BLOOM."""
        return cls(heads)

    @classmethod
    def of_mpt(cls, heads: int, bias_max: float | None) -> Self:
        """Return the rule of MPT, whose bias_max is 8 if its configuration has none."""
        most = USUAL_MAX_BIAS if bias_max is None else float(bias_max)
        return cls(heads, max_bias=most, counts_holes=True)

    @classmethod
    def of_falcon(cls, heads: int, head_dim: int) -> Self:
        """Return the rule of Falcon, whose bias is divided by sqrt(head_dim) like the products."""
        return cls(heads, slope_divisor=math.sqrt(head_dim))

    def numbers(
        self, scaling: Scaling | None, lengths: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Return float32 slopes, (1 or batch, heads, 1 or queries), for lengths of the scaling.

        They are those up to a knee.
        """
        scaling, _ = without_knee(scaling)
        if self.max_bias != USUAL_MAX_BIAS:
            scaling = ScaledExponents(scaling, self.max_bias / USUAL_MAX_BIAS)
        slopes = scaled_slopes(self.heads, scaling, lengths) / np.float32(self.slope_divisor)
        result: NDArray[np.float32] = with_axes(slopes)
        return result
