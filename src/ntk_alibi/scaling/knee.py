"""Scalings of distances: slopes are unchanged, and distances beyond a knee count less."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._backends import backend_of
from ntk_alibi.scaling.base import DynamicScaling, Floats, Scaling, StretchedSlopes


@dataclass(frozen=True)
class KneeShape:
    """The start and the factor of a knee for given token counts.

    Attributes:
        start: the distance of the knee.
        factor: a number, or float64 (batch, 1 or queries).
    """

    start: int
    factor: Any

    def far_slopes(self, slopes: Any) -> Any:
        """Return the slopes beyond the knee, from slopes (1 or batch, heads, 1 or queries)."""
        factor = self.factor
        if isinstance(factor, np.ndarray):
            factor = factor[:, None]
            if _arrays.is_tensor(slopes):
                factor = backend_of(slopes).convert(factor, _arrays.wide_dtype(slopes))
        return slopes / factor

    def compress(self, distance: Any) -> Any:
        """Return the distances >= 0 at which ALiBi without the knee has the same bias.

        Formula, for a single factor::

            min(d, start) + max(d - start, 0) / factor
        """
        near = backend_of(distance).xp.clip(distance, None, self.start)
        return near + (distance - near) / self.factor


@dataclass(frozen=True)
class DistanceScaling(StretchedSlopes):
    """The base class of knees, which change distances instead of slopes."""

    start: int = 0

    def __post_init__(self) -> None:
        start = _checks.integer("start", self.start, minimum=0)
        object.__setattr__(self, "start", start)

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

    def for_lengths(self, lengths: NDArray[Any] | None) -> KneeShape:
        """Return the knee for token counts, as `scale_exponents` takes them."""
        raise NotImplementedError


@dataclass(frozen=True)
class Knee(DistanceScaling):
    """Keeps the bias up to a distance and flattens it beyond.

    Formula::

        bias(d) = -m_h min(d, start) - (m_h / factor) max(d - start, 0)

    Distances up to start are unchanged, and so are texts of up to start + 1 tokens. A factor above
    1 flattens the bias of distant keys, a factor below 1 makes it steeper. With an infinite factor
    all keys beyond start count as if they were at start.

    A head then has two slopes, and the bias depends on the distance between query and key, not on
    the key alone. So `alibi_slopes` and `build_alibi_tensor` refuse a knee. `ALiBi` and `patch`
    take it; `ALiBi` also with slopes other than the standard ones.

    Args:
        start: the distance of the knee in tokens, an integer >= 0.
        factor: a number > 0; infinity for a constant bias beyond the knee.
        layers: layer indices, as for `NTK`.

    Raises:
        TypeError: an argument is not a number.
        ValueError: start is below 0, or factor is not positive.

    Example:
        >>> import ntk_alibi as na
        >>> na.ALiBi(1, na.Knee(2, factor=4.0)).tensor(1, 6)[0, 0, 0] * 256
        array([-2.75, -2.5 , -2.25, -2.  , -1.  ,  0.  ], dtype=float32)

    Source: this package (docs/formulas.md), after leaky ReRoPE (Su 2023, kexue.fm/archives/9708);
    an infinite factor is the distance limit of LM-Infinite (Han et al. 2023, arXiv 2308.16137).
    """

    factor: float = 1.0
    alibi_type: ClassVar[str] = "knee"
    kind: ClassVar[str] = "knee"
    dynamic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = math.inf
        if not (isinstance(self.factor, float | np.floating) and self.factor == factor):
            factor = _checks.finite("factor", self.factor, minimum=0.0, inclusive=False)
        object.__setattr__(self, "factor", factor)

    def for_lengths(self, lengths: NDArray[Any] | None) -> KneeShape:
        """Return the knee, which is the same for all lengths."""
        return KneeShape(self.start, self.factor)


@dataclass(frozen=True)
class DynamicKnee(DynamicScaling, DistanceScaling):
    """A knee whose factor grows with the text.

    Formula::

        bias(d) = -m_h min(d, start) - (m_h / a) max(d - start, 0)
        a = max(rate n / train_length, 1)

    n is the number of tokens, as for `DynamicNTK`. With per="query", the default, a token's bias
    depends on its prefix only, so cached, chunked and batched runs agree with one full pass.

    Args:
        start: the distance of the knee in tokens, an integer >= 0.
        rate: the factor per training length, a finite number > 0.
        train_length: training length in tokens, >= 1; None to let `patch` take the model's.
        per: "query" or "sequence", as for `DynamicNTK`.
        layers: layer indices, as for `NTK`.

    Raises:
        TypeError: an argument is not a number.
        ValueError: an argument is out of range; at the first use, train_length is None.

    Example:
        >>> import ntk_alibi as na
        >>> knee = na.DynamicKnee(2, rate=4.0, train_length=4)
        >>> na.ALiBi(1, knee).tensor(1, 6)[0, 0, 0] * 256
        array([-2.5      , -2.3333333, -2.1666667, -2.       , -1.       ,
                0.       ], dtype=float32)

    Source: this package (docs/formulas.md); the factor grows as in dynamic NTK-ALiBi.
    """

    rate: float = 7.0
    train_length: int | None = None
    alibi_type: ClassVar[str] = "dynamic_knee"
    kind: ClassVar[str] = "dynamic-knee"

    def for_lengths(self, lengths: NDArray[Any] | None) -> KneeShape:
        """Return the knee for token counts."""
        factor = self._factor(lengths)
        if factor.size == 1:
            return KneeShape(self.start, float(factor.reshape(())))
        return KneeShape(self.start, factor if factor.ndim == 2 else factor[:, None])


def split_knee(scaling: Any) -> tuple[Scaling | None, Any]:
    """Return (scaling, None) for a scaling of slopes, (None, scaling) for a knee."""
    return (None, scaling) if isinstance(scaling, DistanceScaling) else (scaling, None)
