"""The protocol of scalings, weights of heads, and the base classes of this package's scalings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks
from ntk_alibi._names import FormerArguments
from ntk_alibi._repr_png import picture

if TYPE_CHECKING:
    from typing_extensions import Self

Floats: TypeAlias = NDArray[np.float64]


@runtime_checkable
class Scaling(Protocol):
    """The protocol of scalings: any object with the method `scale_exponents` is a scaling.

    The optional class attribute `dynamic` is True for a scaling that needs `lengths`: one factor
    for each text. One more method is optional: `trained_at(train_length)` returns the scaling with
    the model's training length, if a scaling may lack it.

    Example:
        >>> import ntk_alibi as na
        >>> class Halved:
        ...     def scale_exponents(self, exponents, lengths=None):
        ...         return exponents + 1.0
        >>> na.alibi_slopes(2, Halved()) * 2 == na.alibi_slopes(2)
        array([ True,  True])

    Source: this package (docs/formulas.md).
    """

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return the scaled exponents.

        Args:
            exponents: (heads,) float64; head h has slope 2^-exponents[h].
            lengths: the number of tokens of each text, (texts,), for a dynamic scaling.

        Returns:
            float64 (heads,), or with lengths (texts, heads).
        """
        ...


#: What an argument `scaling` takes beside None: a scaling, its dict, or the name of a method.
AnyScaling: TypeAlias = Scaling | Mapping[str, Any] | str


def checked_scaling(value: Any, *, name: str = "scaling") -> Any:
    """Return a scaling, or None, after checking it."""
    if value is not None and (
        isinstance(value, type) or not callable(getattr(value, "scale_exponents", None))
    ):
        advice = ""
        if isinstance(value, int | float) and 1 < value < 1e6:  # as a factor is
            advice = f': did you mean NTK({value:g}), or "ntk:{value:g}"?'
        elif isinstance(value, type) and hasattr(value, "scale_exponents"):
            arguments = "" if is_dynamic(value) else "4.0"
            advice = f": did you mean an object, such as {value.__name__}({arguments})?"
        raise TypeError(
            f"{name} must be None or an object with a method scale_exponents(exponents, lengths) "
            f"such as NTK(factor=4.0), got {_checks.briefly(value)}{advice}"
        )
    return value


def trained_at(scaling: Any, train_length: int) -> Any:
    """Return a scaling with the model's training length, if it needs one and has none."""
    fill = None if isinstance(scaling, type) else getattr(scaling, "trained_at", None)
    return scaling if fill is None else fill(train_length)


#: Fields of scalings whose keys in config dicts have other names.
CONFIG_KEYS = {"rate": "factor", "train_length": "original_max_position_embeddings"}

#: Fields of scalings that config dicts and names of methods may leave out.
OPTIONAL = ("train_length",)


def is_dynamic(scaling: Any) -> bool:
    """Return whether the factor of a scaling depends on the length of the text."""
    return bool(getattr(scaling, "dynamic", False))


def is_constant(scaling: Any) -> bool:
    """Return whether the slopes of a scaling may be kept for other problems.

    They must not depend on lengths, and the scaling must have a hash of its own: Python's is of the
    object, whose attributes may change.
    """
    own: Any = type(scaling).__hash__
    return scaling is None or (not is_dynamic(scaling) and own is not object.__hash__)


def by_steepness(exponents: Floats) -> Floats:
    """Return the weights (e_h - e_min) / (e_max - e_min), or 1 if all exponents are equal."""
    lowest, highest = exponents.min(), exponents.max()
    if lowest == highest:
        return np.ones_like(exponents)
    weights: Floats = (exponents - lowest) / (highest - lowest)
    return weights


@dataclass(frozen=True)
class StretchedSlopes(FormerArguments):
    """The base class of this package's scalings: slopes stretched by a factor, e_h + t_h log2(a).

    Attributes:
        alibi_type: the name of the class in config dicts.
        kind: the name of the class in method names: "ntk" in "ntk:4".
        dynamic: whether the factor depends on the length of the text.
    """

    alibi_type: ClassVar[str]
    kind: ClassVar[str]
    dynamic: ClassVar[bool]

    def _repr_png_(self) -> bytes | None:
        return picture("slopes", 16, [None, self])

    def to_config(self) -> dict[str, Any]:
        """Return the plain dict that `scaling_from_config` reads."""
        values = {CONFIG_KEYS.get(name, name): value for name, value in vars(self).items()}
        return {
            "alibi_type": self.alibi_type,
            **{key: value for key, value in values.items() if value is not None},
        }

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return the scaled exponents, as `Scaling` defines; a constant factor ignores lengths."""
        log_factor = np.log2(np.asarray(self._factor(lengths), np.float64))
        return exponents + self._weights(exponents) * log_factor[..., None]

    def _weights(self, exponents: Floats) -> Floats:
        """Return the weights t_h of the heads."""
        raise NotImplementedError

    def _factor(self, lengths: NDArray[np.int64] | None) -> Any:
        """Return a: a number, or (texts,)."""
        raise NotImplementedError


@dataclass(frozen=True)
class StaticScaling(StretchedSlopes):
    """A scaling with a constant factor."""

    factor: float
    dynamic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", _checks.finite("factor", self.factor, minimum=1.0))

    def _factor(self, lengths: NDArray[np.int64] | None) -> float:
        return self.factor


@dataclass(frozen=True)
class DynamicScaling(StretchedSlopes):
    """A scaling with one factor for each text, which grows with it: max(rate n / train_length, 1).

    n is the number of real tokens of the text that a call knows, cached ones included.
    """

    rate: float = 2.0
    train_length: int | None = None
    dynamic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        rate = _checks.finite("rate", self.rate, minimum=0.0, inclusive=False)
        object.__setattr__(self, "rate", rate)
        if self.train_length is not None:
            train_length = _checks.integer("train_length", self.train_length, minimum=1)
            object.__setattr__(self, "train_length", train_length)

    def trained_at(self, train_length: int) -> Self:
        """Return this scaling with the model's training length, unless it already has one."""
        return replace(self, train_length=train_length) if self.train_length is None else self

    def _factor(self, lengths: NDArray[np.int64] | None) -> Floats:
        """Return the factor for each length."""
        if lengths is None:
            raise ValueError(f"lengths must be given for {self!r}, got None")
        if self.train_length is None:
            raise ValueError(
                f"train_length must be given for {self!r} here, got None: only patch(model, "
                "scaling) takes it from the model"
            )
        with np.errstate(over="ignore"):  # infinite exponents are refused with their reason
            factor: Floats = np.maximum(self.rate * lengths / self.train_length, 1.0)
        return factor


#: The share of the heads that `FlatHeads` and `DynamicFlatHeads` stretch.
FLAT_SHARE = 0.25


def of_flattest(exponents: Floats) -> Floats:
    """Return the weights 1 for the quarter of the heads with the flattest slopes, else 0."""
    count = math.ceil(FLAT_SHARE * len(exponents))
    weights = np.zeros_like(exponents)
    weights[np.argsort(-exponents, kind="stable")[:count]] = 1.0
    return weights
