"""Scalings: rules that flatten ALiBi's slopes so that a model sees further than it was trained to.

A scaling works on the exponents e_h of the slopes m_h = 2^-e_h. With a factor a >= 1 and weights
t_h,

    e'_h = e_h + t_h log2(a)

t_h = 1 is position interpolation; t_h = (e_h - e_min) / (e_max - e_min) is NTK-ALiBi. For a power
of two heads the latter is the published (h - 1)/(H - 1); for any other number it is its
continuation: the steepest head is unchanged, the flattest is divided by a, and the order of the
heads is kept. The dynamic scalings choose a from the number of tokens.

Any object with the one method of `Scaling` is a scaling.
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
    """What a scaling is: an object with this one method.

    A class attribute `per` tells what `lengths` the method needs: without it, or with None, the
    scaling does not depend on lengths; "sequence" asks for one length a row, "query" for one a
    query.

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
        """Stretch exponents.

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
    """Factors (batch,) or (batch, queries) get the heads as axis 1."""
    log_factor = np.log2(np.asarray(factor, np.float64))
    if log_factor.ndim == 0:
        return exponents + weights * log_factor
    heads = (slice(None),) + (None,) * (log_factor.ndim - 1)
    return exponents[heads] + weights[heads] * log_factor[:, None]


@dataclass(frozen=True)
class _Static(ReprHtml):
    """A scaling by one factor; what differs is how it weighs the heads."""

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
        """See `Scaling`; lengths are not used."""
        return _stretch(exponents, self._weights(exponents), self.factor)

    def to_config(self) -> dict[str, Any]:
        """The plain dict that `scaling_from_config` reads."""
        return {"alibi_type": self.alibi_type, "factor": self.factor}


@dataclass(frozen=True)
class Interpolation(_Static):
    """Position interpolation: every slope divided by the factor.

    m'_h = m_h / a

    Every head sees a times as far, at 1/a of the resolution: retrieval reaches further, and near
    tokens are told apart less well, within the training length too.

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
    """NTK-ALiBi: the flattest slope divided by the factor, the steepest left as it is.

    m'_h = m_h a^(-t_h),  t_h = (e_h - e_min) / (e_max - e_min)

    One head has t = 1.

    Args:
        factor: a, a finite number >= 1; 1 changes nothing.

    Raises:
        TypeError: factor is not a number.
        ValueError: factor is below 1, infinite or NaN.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(4, na.NTK(2.0))
        array([0.25      , 0.04960628, 0.00984313, 0.00195312], dtype=float32)

    Source: keezen/ntk_alibi 2023, whose code covers powers of two only; docs/formulas.md derives
        the weights for any head count.
    """

    alibi_type: ClassVar[str] = "ntk"
    _weights = staticmethod(_by_steepness)


@dataclass(frozen=True)
class _Dynamic(ReprHtml):
    """A scaling whose factor grows with the text; what differs is how it weighs the heads."""

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
        """See `Scaling`."""
        if lengths is None:
            raise ValueError(f"lengths must be given for {self!r}, got None")
        factor = np.maximum(self.rate * lengths / self.train_length, 1.0)
        return _stretch(exponents, self._weights(exponents), factor)

    def to_config(self) -> dict[str, Any]:
        """The plain dict that `scaling_from_config` reads."""
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

    n is as for `DynamicNTK`, and so are the arguments and errors.

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

    per="sequence" (as published): n is the number of real tokens of the row. per="query": query i
    uses n = i + 1, its own prefix, so that cached, chunked and batched runs agree with one full
    pass.

    Args:
        rate: a0, a finite number > 0, usually 1 to 2.
        train_length: the length the model was trained at, >= 1.
        per: "sequence" or "query".

    Raises:
        TypeError: rate or train_length is not a number.
        ValueError: an argument is out of range.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(2, na.DynamicNTK(train_length=1024), lengths=[512, 4096])
        array([[0.0625    , 0.00390625],
               [0.0625    , 0.00097656]], dtype=float32)

    Source: keezen/ntk_alibi 2023; per="query" is ours (docs/formulas.md).
    """

    alibi_type: ClassVar[str] = "dynamic"
    _weights = staticmethod(_by_steepness)


_STATIC_TYPES = {scaling.alibi_type: scaling for scaling in (Interpolation, NTK)}
_DYNAMIC_TYPES = {scaling.alibi_type: scaling for scaling in (DynamicNTK, DynamicInterpolation)}


def scaling_from_config(config: Mapping[str, Any]) -> Scaling | None:
    """The scaling that a plain dict describes, in the manner of transformers' rope parameters.

    Args:
        config: the key `alibi_type` and what its type needs. "default": nothing more, no scaling;
            "linear" and "ntk": `factor`; "dynamic" and "dynamic_linear": `factor` (the rate a0),
            `original_max_position_embeddings` (the training length) and, if not "sequence", `per`.

    Returns:
        A scaling, or None for "default". `to_config` of a scaling is the way back.

    Raises:
        TypeError: config is not a mapping, or a value has the wrong type.
        ValueError: a key is missing or unknown, or a value is out of range.

    Example:
        >>> import ntk_alibi as na
        >>> na.scaling_from_config({"alibi_type": "ntk", "factor": 4.0})
        NTK(factor=4.0)
    """
    types = ("default", *_STATIC_TYPES, *_DYNAMIC_TYPES)
    _checks.keys("config", config, required=["alibi_type"], optional=config)
    alibi_type = _checks.choice("alibi_type", config["alibi_type"], types)
    if alibi_type == "default":
        _checks.keys("config", config, required=["alibi_type"])
        return None
    if alibi_type in _STATIC_TYPES:
        _checks.keys("config", config, required=["alibi_type", "factor"])
        return _STATIC_TYPES[alibi_type](config["factor"])
    length_key = "original_max_position_embeddings"
    _checks.keys("config", config, required=["alibi_type", "factor", length_key], optional=["per"])
    return _DYNAMIC_TYPES[alibi_type](
        config["factor"], config[length_key], per=config.get("per", "sequence")
    )
