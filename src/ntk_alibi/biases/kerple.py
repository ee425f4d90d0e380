"""KERPLE: functions of distance with learned parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ntk_alibi.biases.distance import DistanceBias
from ntk_alibi.biases.parameters import per_head


@dataclass(frozen=True, eq=False)
class KerplePower(DistanceBias):
    """KERPLE's power kernel: scores fall with a power of the distance.

    Formula::

        bias = -r1 |d|^r2,  r1 > 0, 0 < r2 <= 2

    r2 = 1 is ALiBi with slope r1.

    Args:
        r1: (heads,) array or tensor, > 0; tensors may require grad.
        r2: (heads,), or a number for all heads, > 0 and <= 2.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or has another number of heads.

    Example:
        >>> import ntk_alibi as na
        >>> na.KerplePower(r1=[0.5], r2=[2.0]).tensor(1, 4)[0, 0]
        array([[-4.5, -2. , -0.5, -0. ]], dtype=float32)

    Source: Chi et al. 2022 (arXiv 2205.09921).
    """

    r1: Any
    r2: Any

    def __post_init__(self) -> None:
        r1 = per_head("r1", self.r1, above=0.0)
        heads = int(r1.shape[0])
        r2 = per_head("r2", self.r2, heads, above=0.0, at_most=2.0)
        self.define(num_heads=heads, sides="symmetric", r1=r1, r2=r2)

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        r1, r2 = parameters
        # Distance 0 has the power 0, but its second derivative by torch would be NaN.
        away = distance != 0
        return -r1 * xp.where(away, xp.abs(xp.where(away, distance, 1.0)) ** r2, 0.0)


@dataclass(frozen=True, eq=False)
class KerpleLog(DistanceBias):
    """KERPLE's logarithmic kernel: weights fall with a power of the distance.

    Formula::

        bias = -r1 log(1 + r2 |d|),  r1 > 0, r2 > 0

    Args:
        r1: (heads,) array or tensor, > 0; tensors may require grad.
        r2: (heads,), or a number for all heads, > 0.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or has another number of heads.

    Example:
        >>> import ntk_alibi as na
        >>> na.KerpleLog(r1=[1.0], r2=[1.0]).tensor(1, 3)[0, 0]
        array([[-1.0986123, -0.6931472, -0.       ]], dtype=float32)

    Source: Chi et al. 2022 (arXiv 2205.09921).
    """

    r1: Any
    r2: Any

    def __post_init__(self) -> None:
        r1 = per_head("r1", self.r1, above=0.0)
        heads = int(r1.shape[0])
        r2 = per_head("r2", self.r2, heads, above=0.0)
        self.define(num_heads=heads, sides="symmetric", r1=r1, r2=r2)

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        r1, r2 = parameters
        return -r1 * xp.log1p(r2 * xp.abs(distance))
