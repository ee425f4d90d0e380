"""A scaling of distances: slopes stay as they are, and distances beyond a knee count less."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._repr_html import ReprHtml
from ntk_alibi.scaling.base import Floats, Scaling


@dataclass(frozen=True)
class Knee(ReprHtml):
    """Bends the bias: up to a distance it falls as trained, beyond it by a fraction of that.

    bias(d) = -m_h min(d, start) - (m_h / factor) max(d - start, 0)

    Distances up to start are unchanged, and so are texts of up to start + 1 tokens. A factor above
    1 flattens the bias of distant keys, which is then the larger of two lines; one below 1 makes it
    steeper. With an infinite factor all keys beyond start count as if they were at start.

    The bias of a key depends on its distance to the query in both pieces, so there are no slopes of
    heads and no bias of keys alone: `alibi_slopes` and `build_alibi_tensor` refuse a knee. `ALiBi`
    takes it with its standard slopes or with slopes of its own.

    Args:
        start: w, the distance of the knee in tokens, an integer >= 0.
        factor: G > 0; infinity for a constant bias beyond the knee.

    Raises:
        TypeError: an argument is no number.
        ValueError: start is below 0, or factor is not positive.

    Example:
        >>> import ntk_alibi as na
        >>> na.ALiBi(1, na.Knee(2, factor=4.0)).tensor(1, 6)[0, 0, 0] * 256
        array([-2.75, -2.5 , -2.25, -2.  , -1.  ,  0.  ], dtype=float32)

    Source: this package (docs/formulas.md), after leaky ReRoPE (Su 2023, kexue.fm/archives/9708);
        an infinite factor is the distance limit of LM-Infinite (Han et al. 2023, arXiv 2308.16137).
    """

    start: int
    factor: float
    alibi_type: ClassVar[str] = "knee"
    per: ClassVar[None] = None

    def __post_init__(self) -> None:
        start = _checks.integer("start", self.start, minimum=0)
        object.__setattr__(self, "start", start)
        factor = math.inf
        if not (isinstance(self.factor, float | np.floating) and self.factor == factor):
            factor = _checks.finite("factor", self.factor, minimum=0.0, inclusive=False)
        object.__setattr__(self, "factor", factor)

    def scale_exponents(self, exponents: Floats, lengths: NDArray[Any] | None = None) -> Floats:
        """Refuse to scale slopes.

        Raises:
            ValueError: always; a knee acts on distances.
        """
        raise ValueError(
            f"scaling must act on slopes here, got {self!r}: a knee gives each head two slopes, "
            "one up to its start and one beyond, so it has no key-only form either; "
            "ALiBi(num_heads, scaling) and patch(model, scaling) take it"
        )

    def bent(self, distance: Any) -> Any:
        """Return the distances, >= 0, that have the same bias without a knee.

        bent(d) = min(d, start) + max(d - start, 0) / factor
        """
        near = _arrays.namespace(distance).clip(distance, None, self.start)
        return near + (distance - near) / self.factor

    def to_config(self) -> dict[str, Any]:
        """Return the plain dict that `scaling_from_config` reads."""
        return {"alibi_type": self.alibi_type, "start": self.start, "factor": self.factor}


def without_knee(scaling: Scaling | None) -> tuple[Scaling | None, Knee | None]:
    """Return the scaling of slopes and the knee that a scaling stands for; one of them is None."""
    return (None, scaling) if isinstance(scaling, Knee) else (scaling, None)
