"""The protocol of scalings, the weights of the heads, and the bases of this package's scalings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks
from ntk_alibi._repr_html import ReprHtml

if TYPE_CHECKING:
    from typing_extensions import Self

Floats: TypeAlias = NDArray[np.float64]
Per: TypeAlias = Literal["sequence", "query"]


@runtime_checkable
class Scaling(Protocol):
    """Protocol of scalings: an object with this method.

    The class attribute `per` declares which `lengths` the method needs: "sequence" for one length
    per row, "query" for one per query, None (or no such attribute) for a scaling that does not
    depend on lengths. A scaling of some layers of a model only has a method `at_layer(number)`,
    which returns the scaling of one layer, or None; one that may lack the training length of the
    model has a method `trained_at(train_length)`, which returns it with that length.

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


def checked_scaling(value: Any, *, of_layer: bool = True) -> Any:
    """Return the checked scaling of a model, of one layer unless of_layer is False."""
    if value is not None and (
        isinstance(value, type) or not callable(getattr(value, "scale_exponents", None))
    ):
        of_patch = ", the name of a method, which patch takes" if isinstance(value, str) else ""
        raise TypeError(
            "scaling must be None or an object with a method scale_exponents(exponents, lengths) "
            f"such as NTK(factor=4.0), got {value!r}{of_patch}"
        )
    if of_layer:
        check_one_layer(value)
    return value


def check_one_layer(scaling: Any) -> None:
    """Refuse a scaling of some layers where no layer is known."""
    if getattr(scaling, "layers", None) is not None:
        raise ValueError(
            f"scaling must be that of one layer here, got {scaling!r}: pass its at_layer(number), "
            "or use patch(model, scaling), which knows the layers"
        )


def at_layer(scaling: Any, layer: int) -> Any:
    """Return the scaling of one layer of a model, or None."""
    of_layer = getattr(scaling, "at_layer", None)
    return scaling if of_layer is None else of_layer(layer)


def trained_at(scaling: Any, train_length: int) -> Any:
    """Return a scaling with a model's training length, if it needs one and has none."""
    filled = getattr(scaling, "trained_at", None)
    return scaling if filled is None else filled(train_length)


#: The keys of a config dict that are not named as the fields of scalings are.
CONFIG_KEYS = {"rate": "factor", "train_length": "original_max_position_embeddings"}

#: Fields of scalings that config dicts and the names of methods may leave out.
OPTIONAL = ("train_length", "share", "per", "layers")


def scaling_per(scaling: Scaling | None) -> Per | None:
    """Return the kind of lengths that a scaling depends on: "sequence", "query" or None."""
    per: Per | None = getattr(scaling, "per", None)
    return per


def uniform(exponents: Floats) -> Floats:
    """Return 1 for every head."""
    return np.ones_like(exponents)


def by_steepness(exponents: Floats) -> Floats:
    """Return (e_h - e_min) / (e_max - e_min), and 1 if all exponents are equal."""
    lowest, highest = exponents.min(), exponents.max()
    if lowest == highest:
        return np.ones_like(exponents)
    weights: Floats = (exponents - lowest) / (highest - lowest)
    return weights


def by_exponent(exponents: Floats) -> Floats:
    """Return e_h / e_max."""
    highest = exponents.max()
    weights: Floats = exponents / highest if highest > 0.0 else np.ones_like(exponents)
    return weights


def _stretch(exponents: Floats, weights: Floats, factor: Any) -> Floats:
    """Return e_h + t_h log2(a); for factors (batch,) or (batch, queries), heads become axis 1."""
    log_factor = np.log2(np.asarray(factor, np.float64))
    if log_factor.ndim == 0:
        return exponents + weights * log_factor
    heads = (slice(None),) + (None,) * (log_factor.ndim - 1)
    return exponents[heads] + weights[heads] * log_factor[:, None]


@dataclass(frozen=True, repr=False)
class OfLayers(ReprHtml):
    """The base of this package's scalings: the layers that a scaling applies to, and its dict.

    Attributes:
        layers: numbers of layers, ascending, the first layer being 0; None for all layers.
        alibi_type: the name of its kind in config dicts.
        kind: the name of its kind in methods such as "ntk:4".
    """

    layers: tuple[int, ...] | None = field(default=None, kw_only=True)
    alibi_type: ClassVar[str]
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.layers is not None:
            object.__setattr__(self, "layers", _layers(self.layers))

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        layers = values.pop("layers")  # the first field, shown last
        values |= {} if layers is None else {"layers": layers}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in values.items())})"

    def at_layer(self, layer: int) -> OfLayers | None:
        """Return the scaling of one layer: this one for all layers, or None."""
        if self.layers is None:
            return self
        return replace(self, layers=None) if layer in self.layers else None

    def to_config(self) -> dict[str, Any]:
        """Return the plain dict that `scaling_from_config` reads."""
        config: dict[str, Any] = {"alibi_type": self.alibi_type}
        for name, value in vars(self).items():
            if value is not None:
                config[CONFIG_KEYS.get(name, name)] = list(value) if name == "layers" else value
        return config


def _layers(value: Any) -> tuple[int, ...]:
    scalar = not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0
    if scalar or isinstance(value, str | bytes):
        raise TypeError(f"layers must be None or an iterable of layer numbers, got {value!r}")
    numbers = {_checks.integer("a number in layers", number, minimum=0) for number in value}
    if not numbers:
        raise ValueError(f"layers must hold at least one layer number, got {value!r}")
    return tuple(sorted(numbers))


@dataclass(frozen=True, repr=False)
class WeightedScaling(OfLayers):
    """A scaling with weights of the heads, which subclasses define."""

    def _weights(self, exponents: Floats) -> Floats:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class StaticScaling(WeightedScaling):
    """A scaling by a constant factor."""

    factor: float
    per: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "factor", _checks.finite("factor", self.factor, minimum=1.0))

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return the scaled exponents, as `Scaling` defines; lengths are ignored."""
        return _stretch(exponents, self._weights(exponents), self.factor)


@dataclass(frozen=True, repr=False)
class GrowingFactor(OfLayers):
    """A scaling whose factor grows with the text: max(rate n / train_length, 1)."""

    rate: float = 1.0
    train_length: int | None = None
    per: Per = field(default="sequence", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = _checks.finite("rate", self.rate, minimum=0.0, inclusive=False)
        object.__setattr__(self, "rate", rate)
        if self.train_length is not None:
            train_length = _checks.integer("train_length", self.train_length, minimum=1)
            object.__setattr__(self, "train_length", train_length)
        _checks.choice("per", self.per, ("sequence", "query"))

    def trained_at(self, train_length: int) -> Self:
        """Return this scaling with a model's training length, unless it has one of its own."""
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


@dataclass(frozen=True, repr=False)
class DynamicScaling(GrowingFactor, WeightedScaling):
    """A scaling of slopes whose factor grows with the text."""

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return the scaled exponents, as `Scaling` defines."""
        return _stretch(exponents, self._weights(exponents), self._factor(lengths))


class FlattestHeads(WeightedScaling):
    """The weights of scalings with a field `share`: only the flattest heads are stretched."""

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        share = _checks.share("share", self.share, all_allowed=True)
        object.__setattr__(self, "share", share)

    def _weights(self, exponents: Floats) -> Floats:
        """Return 1 for the ceil(share H) heads with the flattest slopes, else 0."""
        # A product such as 0.1 * 30 may be rounded to just above the whole number that it is.
        count = max(math.ceil(self.share * len(exponents) * (1.0 - 1e-12)), 1)
        weights = np.zeros_like(exponents)
        weights[np.argsort(-exponents, kind="stable")[:count]] = 1.0
        return weights
