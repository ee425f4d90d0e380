"""Scalings with a constant factor."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ntk_alibi import _checks
from ntk_alibi.scaling.base import Floats, StaticScaling, by_steepness, of_flattest

#: `max_alibi_bias` of unscaled slopes: for powers of two, the exponent of the flattest slope.
USUAL_MAX_BIAS = 8.0


@functools.lru_cache(maxsize=64)
def alibi_exponents(heads: int, *, geometric: bool = False) -> Floats:
    """Return the exponents e_h (heads,) of ALiBi's slopes 2^-e_h, as `alibi_slopes` has them.

    They rise evenly up to 8 over the first heads, a power of two of them, or over all if geometric.
    The other heads take every other exponent of twice as many heads.
    """
    regular = heads if geometric else 1 << (heads.bit_length() - 1)
    odd = 2 * np.arange(heads - regular) + 1
    evenly = USUAL_MAX_BIAS * np.arange(1, regular + 1) / regular
    exponents = np.concatenate([evenly, USUAL_MAX_BIAS * odd / (2 * regular)])
    exponents.flags.writeable = False
    return exponents


@dataclass(frozen=True)
class Interpolation(StaticScaling):
    """Position interpolation: divides every slope by the factor.

    Formula::

        m'_h = m_h / a

    Every head sees a times as far, with 1/a of the resolution: retrieval reaches further, but
    nearby tokens are harder to distinguish, also within the training length.

    Args:
        factor: a, a finite number >= 1; 1 changes nothing.

    Raises:
        TypeError: factor is not a number.
        ValueError: factor is below 1, infinite or NaN.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(4, na.Interpolation(2.0))
        array([0.125     , 0.03125   , 0.0078125 , 0.00195312], dtype=float32)

    Source: S. Chen et al. 2023 (arXiv 2306.15595) for RoPE; Al-Khateeb et al. 2023 (arXiv
    2310.13017) and keezen/ntk_alibi 2023 for ALiBi.
    """

    alibi_type: ClassVar[str] = "linear"
    kind: ClassVar[str] = "interpolation"

    def stretch_rotary(self, base: float, factor: float, pairs: int) -> tuple[float, float]:
        """Return the base and the factor of RoPE after this scaling."""
        return base, factor * self.factor

    def _weights(self, exponents: Floats) -> Floats:
        return np.ones_like(exponents)


@dataclass(frozen=True)
class NTK(StaticScaling):
    """NTK-ALiBi: divides the flattest slope by the factor and keeps the steepest one.

    Formula::

        m'_h = m_h a^(-t_h),  t_h = (e_h - e_min) / (e_max - e_min)

    The slopes are m_h = 2^-e_h. With a single head, t = 1.

    Args:
        factor: a, a finite number >= 1; 1 changes nothing.

    Raises:
        TypeError: factor is not a number.
        ValueError: factor is below 1, infinite or NaN.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(4, na.NTK(2.0))
        array([0.25      , 0.04960628, 0.00984313, 0.00195312], dtype=float32)

    Source: keezen/ntk_alibi 2023, whose code covers head counts that are powers of two;
    docs/formulas.md derives the weights for any head count.
    """

    alibi_type: ClassVar[str] = "ntk"
    kind: ClassVar[str] = "ntk"

    def stretch_rotary(self, base: float, factor: float, pairs: int) -> tuple[float, float]:
        """Return the base and the factor of RoPE after this scaling.

        Raises:
            ValueError: there is a single pair of channels, which NTK would not change.
        """
        if pairs < 2:
            raise ValueError(
                "scaling must be an Interpolation for one pair of channels, got an NTK"
            )
        return base * self.factor ** (pairs / (pairs - 1)), factor

    def _weights(self, exponents: Floats) -> Floats:
        return by_steepness(exponents)


@dataclass(frozen=True)
class FlatHeads(StaticScaling):
    """Divides the slopes of the flattest heads by the factor, and keeps all others.

    Formula::

        m'_h = m_h / a  for the ceil(H / 4) heads with the smallest slopes
        m'_h = m_h      for the others

    Args:
        factor: a, a finite number >= 1; 1 changes nothing.

    Raises:
        TypeError: factor is not a number.
        ValueError: factor is below 1, infinite or NaN.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(4, na.FlatHeads(8.0))
        array([0.25      , 0.0625    , 0.015625  , 0.00048828], dtype=float32)

    Source: this package (docs/formulas.md); only heads that already see far see further.
    """

    alibi_type: ClassVar[str] = "flat_heads"
    kind: ClassVar[str] = "flat"

    def _weights(self, exponents: Floats) -> Floats:
        return of_flattest(exponents)


@dataclass(frozen=True)
class MaxBias(StaticScaling):
    """Multiplies all exponents by a constant, as a larger `max_alibi_bias` in MPT and GGUF does.

    Formula::

        e'_h = e_h (e_max + log2 a) / e_max

    The slopes are m_h = 2^-e_h; the flattest slope is divided by a. Formats that store only
    `max_alibi_bias`, such as GGUF, can express the result.

    Args:
        factor: a, a finite number >= 1; 1 changes nothing.

    Raises:
        TypeError: factor is not a number.
        ValueError: factor is below 1, infinite or NaN.

    Example:
        >>> import ntk_alibi as na
        >>> na.MaxBias(4.0).max_alibi_bias(8)
        10.0

    Source: this package (docs/formulas.md); MPT and llama.cpp for `max_alibi_bias`.
    """

    alibi_type: ClassVar[str] = "max_bias"
    kind: ClassVar[str] = "max-bias"

    def _weights(self, exponents: Floats) -> Floats:
        highest = exponents.max()
        weights: Floats = exponents / highest if highest > 0.0 else np.ones_like(exponents)
        return weights

    def max_alibi_bias(self, num_heads: int, base: float = USUAL_MAX_BIAS) -> float:
        """Return the `max_alibi_bias` that gives these slopes in a model with num_heads heads.

        Formula::

            b' = b (e_max + log2 a) / e_max

        Args:
            num_heads: the number of heads of the model.
            base: b, the model's `max_alibi_bias` before, a finite number > 0: 8 for BLOOM and
                Baichuan; for MPT `config.attn_config.alibi_bias_max`, 16 for MPT-7B-StoryWriter.
                e_max, the exponent of the model's flattest slope, grows with b.

        Raises:
            TypeError: num_heads is not an integer, or base not a number.
            ValueError: num_heads is below 1; base is not above 0, infinite or NaN.

        Example:
            >>> import ntk_alibi as na
            >>> na.MaxBias(4.0).max_alibi_bias(4), na.MaxBias(4.0).max_alibi_bias(4, base=16.0)
            (10.0, 18.0)
        """
        heads = _checks.num_heads(num_heads)
        base = _checks.finite("base", base, minimum=0.0, inclusive=False)
        usual = float(alibi_exponents(heads).max())
        return base + USUAL_MAX_BIAS * math.log2(self.factor) / usual
