"""A scaling that steepens the flattest heads, for the first training steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.scaling import NTK, Scaling

pass


@dataclass(frozen=True)
class SteepenFlattest:
    """The reverse of NTK, and then another scaling: multiplies the flattest slope by the factor."""

    factor: float
    then: Scaling | None = None

    @property
    def per(self) -> str | None:
        """As the other scaling's."""
        return getattr(self.then, "per", None)

    def scale_exponents(
        self, exponents: NDArray[np.float64], lengths: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """See `ntk_alibi.Scaling`."""
        steeper = 2.0 * exponents - NTK(self.factor).scale_exponents(exponents)
        return steeper if self.then is None else self.then.scale_exponents(steeper, lengths)
