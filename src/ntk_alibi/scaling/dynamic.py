"""Scalings whose factor grows with the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ntk_alibi.scaling.base import DynamicScaling, Floats, by_steepness, of_flattest


@dataclass(frozen=True)
class DynamicNTK(DynamicScaling):
    """NTK-ALiBi whose factor grows with the text.

    Formula::

        m'_h = m_h a^(-t_h),  a = max(rate n / train_length, 1)

    n is the number of real tokens of the text that a call knows, cached ones included. So a prompt
    that is read at once has one factor. When the text grows under a cache, the factor grows, and
    the cached keys keep what they were computed with; docs/choose-a-method.md says what that costs.

    Args:
        rate: the factor at the training length, a finite number > 0, usually 1 to 2.
        train_length: training length in tokens, >= 1; None to let `patch` take the model's.

    Raises:
        TypeError: rate or train_length is not a number.
        ValueError: an argument is out of range; at the first use, train_length is None.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(2, na.DynamicNTK(train_length=1024), lengths=[512, 4096])
        array([[0.0625    , 0.00390625],
               [0.0625    , 0.00048828]], dtype=float32)

    Source: keezen/ntk_alibi 2023 (docs/formulas.md).
    """

    alibi_type: ClassVar[str] = "dynamic"
    kind: ClassVar[str] = "dynamic-ntk"

    def _weights(self, exponents: Floats) -> Floats:
        return by_steepness(exponents)


@dataclass(frozen=True)
class DynamicInterpolation(DynamicScaling):
    """Position interpolation whose factor grows with the text.

    Formula::

        m'_h = m_h / a,  a = max(rate n / train_length, 1)

    n is the number of tokens, as for `DynamicNTK`.

    Args:
        rate: the factor at the training length, a finite number > 0, usually 1 to 2.
        train_length: training length in tokens, >= 1; None to let `patch` take the model's.

    Raises:
        TypeError: rate or train_length is not a number.
        ValueError: an argument is out of range; at the first use, train_length is None.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(2, na.DynamicInterpolation(1.0, train_length=1024), lengths=[4096])
        array([[0.015625  , 0.00097656]], dtype=float32)

    Source: keezen/ntk_alibi 2023 has the dynamic factor for NTK; this is its interpolation form.
    """

    alibi_type: ClassVar[str] = "dynamic_linear"
    kind: ClassVar[str] = "dynamic-interpolation"

    def _weights(self, exponents: Floats) -> Floats:
        return np.ones_like(exponents)


@dataclass(frozen=True)
class DynamicFlatHeads(DynamicScaling):
    """Divides the slopes of the flattest heads by a factor that grows with the text.

    Formula::

        m'_h = m_h / a for the ceil(H / 4) flattest heads,  a = max(rate n / train_length, 1)

    n is the number of tokens, as for `DynamicNTK`.

    Args:
        rate: the factor at the training length, a finite number > 0, usually 1 to 2.
        train_length: training length in tokens, >= 1; None to let `patch` take the model's.

    Raises:
        TypeError: an argument is not a number.
        ValueError: an argument is out of range; at the first use, train_length is None.

    Example:
        >>> import ntk_alibi as na
        >>> scaling = na.DynamicFlatHeads(train_length=1024)
        >>> na.alibi_slopes(2, scaling, lengths=[512, 4096])
        array([[0.0625    , 0.00390625],
               [0.0625    , 0.00048828]], dtype=float32)

    Source: this package (docs/formulas.md).
    """

    alibi_type: ClassVar[str] = "dynamic_flat_heads"
    kind: ClassVar[str] = "dynamic-flat"

    def _weights(self, exponents: Floats) -> Floats:
        return of_flattest(exponents)
