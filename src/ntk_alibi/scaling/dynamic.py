"""Scalings whose factor grows with the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ntk_alibi.scaling.base import (
    DynamicScaling,
    FlattestHeads,
    Floats,
    Per,
    by_steepness,
)


@dataclass(frozen=True, repr=False)
class DynamicNTK(DynamicScaling):
    """NTK-ALiBi whose factor grows with the text.

    Formula::

        m'_h = m_h a^(-t_h),  a = max(rate n / train_length, 1)

    With per="query", n is the length of the query's prefix, i + 1 for query i, so cached, chunked
    and batched runs agree with one full pass: use it for models. With per="sequence", n is the
    number of real tokens of the row. It is the default because it was published so, but a patched
    model then warns in generate(), where the cache was computed with other slopes.

    Args:
        rate: the factor per training length, a finite number > 0, usually 1 to 2.
        train_length: training length in tokens, >= 1; None to let `patch` take the model's.
        per: "sequence" or "query", as above.
        layers: layer indices, as for `NTK`.

    Raises:
        TypeError: rate or train_length is not a number.
        ValueError: an argument is out of range; at the first use, train_length is None.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(2, na.DynamicNTK(train_length=1024), lengths=[512, 4096])
        array([[0.0625    , 0.00390625],
               [0.0625    , 0.00097656]], dtype=float32)

    Source: keezen/ntk_alibi 2023; per="query" is this package's addition (docs/formulas.md).
    """

    alibi_type: ClassVar[str] = "dynamic"
    kind: ClassVar[str] = "dynamic-ntk"

    def _weights(self, exponents: Floats) -> Floats:
        return by_steepness(exponents)


@dataclass(frozen=True, repr=False)
class DynamicInterpolation(DynamicScaling):
    """Position interpolation whose factor grows with the text.

    Formula::

        m'_h = m_h / a,  a = max(rate n / train_length, 1)

    n is the number of tokens, as for `DynamicNTK`.

    Args:
        rate: the factor per training length, a finite number > 0, usually 1 to 2.
        train_length: training length in tokens, >= 1; None to let `patch` take the model's.
        per: "sequence" or "query", as for `DynamicNTK`.
        layers: layer indices, as for `NTK`.

    Raises:
        TypeError: rate or train_length is not a number.
        ValueError: an argument is out of range; at the first use, train_length is None.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(2, na.DynamicInterpolation(train_length=1024), lengths=[4096])
        array([[0.015625  , 0.00097656]], dtype=float32)

    Source: keezen/ntk_alibi 2023 has the dynamic factor for NTK; this is its interpolation form.
    """

    alibi_type: ClassVar[str] = "dynamic_linear"
    kind: ClassVar[str] = "dynamic-interpolation"

    def _weights(self, exponents: Floats) -> Floats:
        return np.ones_like(exponents)


@dataclass(frozen=True, repr=False)
class DynamicFlatHeads(FlattestHeads, DynamicScaling):
    """Divides the slopes of the flattest heads by a factor that grows with the text.

    Formula::

        m'_h = m_h / a for the ceil(share H) flattest heads,  a = max(rate n / train_length, 1)

    n is the number of tokens, as for `DynamicNTK`. With per="query", the default, a token's slopes
    depend on its prefix only, so cached, chunked and batched runs agree with one full pass.

    Args:
        rate: the factor per training length, a finite number > 0.
        train_length: training length in tokens, >= 1; None to let `patch` take the model's.
        share: the share of heads whose slopes are divided, above 0 and at most 1.
        per: "query" or "sequence", as for `DynamicNTK`.
        layers: layer indices, as for `NTK`.

    Raises:
        TypeError: an argument is not a number.
        ValueError: an argument is out of range; at the first use, train_length is None.

    Example:
        >>> import ntk_alibi as na
        >>> scaling = na.DynamicFlatHeads(train_length=1024, per="sequence")
        >>> na.alibi_slopes(2, scaling, lengths=[512, 4096])
        array([[0.0625    , 0.00390625],
               [0.0625    , 0.00048828]], dtype=float32)

    Source: this package (docs/formulas.md).
    """

    rate: float = 2.0
    train_length: int | None = None
    share: float = 0.25
    per: Per = field(default="query", kw_only=True)
    alibi_type: ClassVar[str] = "dynamic_flat_heads"
    kind: ClassVar[str] = "dynamic-flat"
