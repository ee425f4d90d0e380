"""A scaling that steepens the slopes of a model whose training length is short."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import NTK, Scaling
from ntk_alibi.scaling import is_dynamic


@dataclass(frozen=True)
class SteepenFlattest:
    """The inverse of NTK, followed by another scaling.

    Attributes:
        factor: factor by which the inverse of NTK multiplies the flattest slope.
        then: the scaling that follows, or None.
    """

    factor: float
    then: Scaling | None = None

    @property
    def dynamic(self) -> bool:
        """Whether the scaling that follows is dynamic."""
        return is_dynamic(self.then)

    def scale_exponents(
        self, exponents: NDArray[np.float64], lengths: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Return the scaled exponents; see `ntk_alibi.Scaling`."""
        steeper = 2.0 * exponents - NTK(self.factor).scale_exponents(exponents)
        return steeper if self.then is None else self.then.scale_exponents(steeper, lengths)
