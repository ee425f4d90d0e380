"""Scalings whose factor grows with the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ntk_alibi.scaling.base import (
    DynamicScaling,
    FlattestHeads,
    Floats,
    Per,
    by_steepness,
    uniform,
)


@dataclass(frozen=True, repr=False)
class DynamicNTK(DynamicScaling):
    """NTK-ALiBi with a factor that grows with the text.

    Formula::

        m'_h = m_h a^(-t_h),  a = max(rate n / train_length, 1)

    With per="query", query i uses n = i + 1, the length of its prefix, so that cached, chunked and
    batched runs agree with one full pass: take it for models. With per="sequence", the default
    since it is the published rule, n is the number of real tokens of the row; a patched model then
    gives a warning in generate(), whose cache was computed under other slopes.

    Args:
        rate: a finite number > 0, usually 1 to 2.
        train_length: training length of the model in tokens, >= 1; None for that of the model that
            `patch` gets.
        per: "sequence" or "query", as above.
        layers: numbers of the layers that it applies to, as for `NTK`.

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
    """Position interpolation with a factor that grows with the text.

    Formula::

        m'_h = m_h / a,  a = max(rate n / train_length, 1)

    n, the arguments and the errors are those of `DynamicNTK`.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(2, na.DynamicInterpolation(train_length=1024), lengths=[4096])
        array([[0.015625  , 0.00097656]], dtype=float32)

    Source: keezen/ntk_alibi 2023 names the rule for NTK; this is its interpolation form.
    """

    alibi_type: ClassVar[str] = "dynamic_linear"
    kind: ClassVar[str] = "dynamic-interpolation"

    def _weights(self, exponents: Floats) -> Floats:
        return uniform(exponents)


@dataclass(frozen=True, repr=False)
class DynamicFlatHeads(FlattestHeads, DynamicScaling):
    """Flattens the flattest heads by a factor that grows with the text.

    Formula::

        m'_h = m_h / a for the ceil(share H) flattest heads,  a = max(rate n / train_length, 1)

    n is that of `DynamicNTK`. With per="query", the default, each token's slopes depend on its
    prefix alone, so that cached, chunked and batched runs agree with one full pass.

    Args:
        rate: a finite number > 0.
        train_length: training length of the model in tokens, >= 1; None for that of the model that
            `patch` gets.
        share: the share of the heads that are flattened, above 0 and at most 1.
        per: "query" or "sequence", as for `DynamicNTK`.
        layers: numbers of the layers that it applies to, as for `NTK`.

    Raises:
        TypeError, ValueError: an argument is no number, or out of range; at the first use,
            train_length is None.

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
