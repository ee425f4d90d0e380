"""Scalings: rules that flatten ALiBi's slopes, so that a model sees beyond its training length.

A scaling works on the exponents e_h of the slopes m_h = 2^-e_h. With a factor a >= 1 and weights
t_h,

    e'_h = e_h + t_h log2(a)

t_h = 1 is position interpolation; t_h = (e_h - e_min) / (e_max - e_min) is NTK-ALiBi. For head
counts that are powers of two, NTK-ALiBi's weights are the published (h - 1)/(H - 1). For other head
counts they continue that rule: the steepest slope is unchanged, the flattest is divided by a, and
the order of the heads is kept. Dynamic scalings compute a from the number of tokens.

Any object with the method of `Scaling` is a scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks
from ntk_alibi._repr_html import ReprHtml

Floats: TypeAlias = NDArray[np.float64]
Per: TypeAlias = Literal["sequence", "query"]


@runtime_checkable
class Scaling(Protocol):
    """Protocol of scalings: an object with this method.

    The class attribute `per` declares which `lengths` the method needs: "sequence" for one length
    per row, "query" for one per query, None (or no such attribute) for a scaling that does not
    depend on lengths.

    Example:
        >>> import ntk_alibi as na
        >>> class Halved:
        ...     def scale_exponents(self, exponents, lengths=None):
        ...         return exponents + 1.0
        >>> na.alibi_slopes(2, Halved()) * 2 == na.alibi_slopes(2)
        array([ True,  True])
    """

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return the scaled exponents.

        Args:
            exponents: (heads,) float64; head h has slope 2^-exponents[h].
            lengths: numbers of tokens, (batch,) for `per = "sequence"`, (batch, queries) for `per =
                "query"`.

        Returns:
            (heads,), or with lengths (batch, heads) or (batch, heads, queries), float64.
        """
        ...


def _uniform(exponents: Floats) -> Floats:
    return np.ones_like(exponents)


def _by_steepness(exponents: Floats) -> Floats:
    lowest, highest = exponents.min(), exponents.max()
    if lowest == highest:
        return np.ones_like(exponents)
    weights: Floats = (exponents - lowest) / (highest - lowest)
    return weights


def _stretch(exponents: Floats, weights: Floats, factor: Any) -> Floats:
    """Return e_h + t_h log2(a); for factors (batch,) or (batch, queries), heads become axis 1."""
    log_factor = np.log2(np.asarray(factor, np.float64))
    if log_factor.ndim == 0:
        return exponents + weights * log_factor
    heads = (slice(None),) + (None,) * (log_factor.ndim - 1)
    return exponents[heads] + weights[heads] * log_factor[:, None]


@dataclass(frozen=True)
class _Static(ReprHtml):
    """A scaling by a constant factor; subclasses define the weights of the heads."""

    factor: float
    per: ClassVar[None] = None
    alibi_type: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", _checks.finite("factor", self.factor, minimum=1.0))

    @staticmethod
    def _weights(exponents: Floats) -> Floats:
        raise NotImplementedError

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return the scaled exponents, as `Scaling` defines; lengths are ignored."""
        return _stretch(exponents, self._weights(exponents), self.factor)

    def to_config(self) -> dict[str, Any]:
        """Return the plain dict that `scaling_from_config` reads."""
        return {"alibi_type": self.alibi_type, "factor": self.factor}


@dataclass(frozen=True)
class Interpolation(_Static):
    """Position interpolation: divides every slope by the factor.

    m'_h = m_h / a

    Every head sees a times as far, at 1/a of the resolution: retrieval reaches further, but nearby
    tokens are harder to distinguish, also within the training length.

    Args:
        factor: a, a finite number >= 1; 1 changes nothing.

    Raises:
        TypeError: factor is not a number.
        ValueError: factor is below 1, infinite or NaN.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(4, na.Interpolation(2.0))
        array([0.125     , 0.03125   , 0.0078125 , 0.00195312], dtype=float32)

    Source: S. Chen et al. 2023 (arXiv 2306.15595) for RoPE; keezen/ntk_alibi 2023 for ALiBi.
    """

    alibi_type: ClassVar[str] = "linear"
    _weights = staticmethod(_uniform)


@dataclass(frozen=True)
class NTK(_Static):
    """NTK-ALiBi: divides the flattest slope by the factor and keeps the steepest one.

    m'_h = m_h a^(-t_h),  t_h = (e_h - e_min) / (e_max - e_min)

    With a single head, t = 1.

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
    _weights = staticmethod(_by_steepness)


@dataclass(frozen=True)
class _Dynamic(ReprHtml):
    """A scaling whose factor grows with the text; subclasses define the weights of the heads."""

    rate: float = 1.0
    train_length: int = 2048
    per: Per = field(default="sequence", kw_only=True)
    alibi_type: ClassVar[str]

    def __post_init__(self) -> None:
        rate = _checks.finite("rate", self.rate, minimum=0.0, inclusive=False)
        train_length = _checks.integer("train_length", self.train_length, minimum=1)
        object.__setattr__(self, "rate", rate)
        object.__setattr__(self, "train_length", train_length)
        _checks.choice("per", self.per, ("sequence", "query"))

    @staticmethod
    def _weights(exponents: Floats) -> Floats:
        raise NotImplementedError

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return the scaled exponents, as `Scaling` defines."""
        if lengths is None:
            raise ValueError(f"lengths must be given for {self!r}, got None")
        with np.errstate(over="ignore"):  # infinite exponents are refused with their reason
            factor = np.maximum(self.rate * lengths / self.train_length, 1.0)
        return _stretch(exponents, self._weights(exponents), factor)

    def to_config(self) -> dict[str, Any]:
        """Return the plain dict that `scaling_from_config` reads."""
        return {
            "alibi_type": self.alibi_type,
            "factor": self.rate,
            "original_max_position_embeddings": self.train_length,
            "per": self.per,
        }


@dataclass(frozen=True)
class DynamicInterpolation(_Dynamic):
    """Position interpolation with a factor that grows with the text.

    m'_h = m_h / a,  a = max(rate n / train_length, 1)

    n, the arguments and the errors are those of `DynamicNTK`.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(2, na.DynamicInterpolation(train_length=1024), lengths=[4096])
        array([[0.015625  , 0.00097656]], dtype=float32)

    Source: keezen/ntk_alibi 2023 names the rule for NTK; this is its interpolation form.
    """

    alibi_type: ClassVar[str] = "dynamic_linear"
    _weights = staticmethod(_uniform)


@dataclass(frozen=True)
class DynamicNTK(_Dynamic):
    """NTK-ALiBi with a factor that grows with the text.

    m'_h = m_h a^(-t_h),  a = max(rate n / train_length, 1)

    With per="sequence" (as published), n is the number of real tokens of the row. With per="query",
    query i uses n = i + 1, the length of its prefix, so that cached, chunked and batched runs agree
    with one full pass.

    Args:
        rate: a0, a finite number > 0, usually 1 to 2.
        train_length: training length of the model in tokens, >= 1.
        per: "sequence" or "query", as above.

    Raises:
        TypeError: rate or train_length is not a number.
        ValueError: an argument is out of range.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(2, na.DynamicNTK(train_length=1024), lengths=[512, 4096])
        array([[0.0625    , 0.00390625],
               [0.0625    , 0.00097656]], dtype=float32)

    Source: keezen/ntk_alibi 2023; per="query" is this package's addition (docs/formulas.md).
    """

    alibi_type: ClassVar[str] = "dynamic"
    _weights = staticmethod(_by_steepness)


#: Scalings by one factor, by their `alibi_type`; their slopes depend on no lengths.
STATIC_TYPES = {scaling.alibi_type: scaling for scaling in (Interpolation, NTK)}
_DYNAMIC_TYPES = {scaling.alibi_type: scaling for scaling in (DynamicNTK, DynamicInterpolation)}


def scaling_from_config(config: Mapping[str, Any]) -> Scaling | None:
    """Return the scaling that a plain dict describes, similar to transformers' rope parameters.

    Args:
        config: the key `alibi_type` and the keys of its type. "default" has none and means no
            scaling; "linear" and "ntk" need `factor`; "dynamic" and "dynamic_linear" need `factor`
            (the rate a0) and `original_max_position_embeddings` (the training length), and take
            `per` ("sequence" by default).

    Returns:
        A scaling, or None for "default". `to_config` of a scaling is the inverse.

    Raises:
        TypeError: config is not a mapping, or a value has the wrong type.
        ValueError: a key is missing or unknown, or a value is out of range.

    Example:
        >>> import ntk_alibi as na
        >>> na.scaling_from_config({"alibi_type": "ntk", "factor": 4.0})
        NTK(factor=4.0)
    """
    types = ("default", *STATIC_TYPES, *_DYNAMIC_TYPES)
    _checks.keys("config", config, required=["alibi_type"], optional=config)
    alibi_type = _checks.choice("alibi_type", config["alibi_type"], types)
    if alibi_type == "default":
        _checks.keys("config", config, required=["alibi_type"])
        return None
    if alibi_type in STATIC_TYPES:
        _checks.keys("config", config, required=["alibi_type", "factor"])
        return STATIC_TYPES[alibi_type](config["factor"])
    length_key = "original_max_position_embeddings"
    _checks.keys("config", config, required=["alibi_type", "factor", length_key], optional=["per"])
    return _DYNAMIC_TYPES[alibi_type](
        config["factor"], config[length_key], per=config.get("per", "sequence")
    )
