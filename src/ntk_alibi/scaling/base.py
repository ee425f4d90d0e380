"""The protocol of scalings, weights of heads, and the base classes of this package's scalings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks
from ntk_alibi._repr_png import picture

if TYPE_CHECKING:
    from typing_extensions import Self

Floats: TypeAlias = NDArray[np.float64]
Per: TypeAlias = Literal["sequence", "query"]


@runtime_checkable
class Scaling(Protocol):
    """The protocol of scalings: any object with the method `scale_exponents` is a scaling.

    The optional class attribute `per` declares which `lengths` the method needs: "sequence" for one
    length per row, "query" for one per query, None (the default) for a scaling that does not depend
    on lengths. Two more methods are optional. `at_layer(number)` returns the scaling of one layer,
    or None, if a scaling treats layers differently. `trained_at(train_length)` returns the scaling
    with the model's training length, if a scaling may lack it.

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
            lengths: counts of tokens, (batch,) for `per = "sequence"`, (batch, queries) for
                `per = "query"`.

        Returns:
            float64 (heads,), or with lengths (batch, heads) or (batch, heads, queries).
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
        raise TypeError(
            f"{name} must be None or an object with a method scale_exponents(exponents, lengths) "
            f"such as NTK(factor=4.0), got {_checks.briefly(value)}{advice}"
        )
    return value


def check_one_layer(scaling: Any) -> None:
    """Refuse a scaling with `layers`, where the layer is unknown."""
    if getattr(scaling, "layers", None) is not None:
        raise ValueError(
            f"scaling must be for one layer here, got {_checks.briefly(scaling)}: pass its "
            "at_layer(number), or use patch(model, scaling), which knows the layers"
        )


def check_layers(scaling: Any, count: int) -> None:
    """Check that a scaling applies to layers that a model has."""
    layers = getattr(scaling, "layers", None) or ()
    if layers and max(layers) >= count:
        raise ValueError(
            f"layers must be below {count}, the number of the model's layers, got {scaling!r}"
        )


def at_layer(scaling: Any, layer: int) -> Any:
    """Return the scaling of one layer of a model, or None."""
    select = getattr(scaling, "at_layer", None)
    return scaling if select is None else select(layer)


def trained_at(scaling: Any, train_length: int) -> Any:
    """Return a scaling with the model's training length, if it needs one and has none."""
    fill = getattr(scaling, "trained_at", None)
    return scaling if fill is None else fill(train_length)


#: Fields of scalings whose keys in config dicts have other names.
CONFIG_KEYS = {"rate": "factor", "train_length": "original_max_position_embeddings"}

#: Fields of scalings that config dicts and names of methods may leave out.
OPTIONAL = ("train_length", "share", "per", "layers")


def scaling_per(scaling: Scaling | None) -> Per | None:
    """Return which lengths a scaling depends on: "sequence", "query" or None."""
    per: Per | None = getattr(scaling, "per", None)
    return per


def is_constant(scaling: Any) -> bool:
    """Return whether the slopes of a scaling may be kept for other problems.

    They must not depend on lengths, and the scaling must have a hash of its own: Python's is of the
    object, whose attributes may change.
    """
    own: Any = type(scaling).__hash__
    return scaling is None or (getattr(scaling, "per", None) is None and own is not object.__hash__)


def by_steepness(exponents: Floats) -> Floats:
    """Return the weights (e_h - e_min) / (e_max - e_min), or 1 if all exponents are equal."""
    lowest, highest = exponents.min(), exponents.max()
    if lowest == highest:
        return np.ones_like(exponents)
    weights: Floats = (exponents - lowest) / (highest - lowest)
    return weights


def _stretch(exponents: Floats, weights: Floats, factor: Any) -> Floats:
    """Return e_h + t_h log2(a); with factors (batch,) or (batch, queries), heads become axis 1."""
    log_factor = np.log2(np.asarray(factor, np.float64))
    if log_factor.ndim == 0:
        return exponents + weights * log_factor
    heads = (slice(None),) + (None,) * (log_factor.ndim - 1)
    return exponents[heads] + weights[heads] * log_factor[:, None]


@dataclass(frozen=True, repr=False)
class LayeredScaling:
    """The base class of this package's scalings: which layers they apply to, and config dicts.

    Attributes:
        layers: layer indices, ascending from 0; None for all layers.
        alibi_type: the name of the class in config dicts.
        kind: the name of the class in method names: "ntk" in "ntk:4".
    """

    layers: tuple[int, ...] | None = field(default=None, kw_only=True)
    alibi_type: ClassVar[str]
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        if self.layers is not None:
            object.__setattr__(self, "layers", _layers(self.layers))

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        layers = values.pop("layers")  # the first field, shown last
        values |= {} if layers is None else {"layers": layers}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in values.items())})"

    def _repr_png_(self) -> bytes | None:
        return picture("slopes", 16, [None, self])

    def at_layer(self, layer: int) -> LayeredScaling | None:
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
        raise TypeError(
            f"layers must be None or an iterable of layer indices, got {_checks.briefly(value)}"
        )
    layers = {_checks.integer(f"layers[{i}]", layer, minimum=0) for i, layer in enumerate(value)}
    if not layers:
        raise ValueError(f"layers must hold at least one layer index, got {_checks.briefly(value)}")
    return tuple(sorted(layers))


@dataclass(frozen=True, repr=False)
class WeightedScaling(LayeredScaling):
    """A scaling of slopes by a factor, with a weight for each head; subclasses define both."""

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return the scaled exponents, as `Scaling` defines; a constant factor ignores lengths."""
        return _stretch(exponents, self._weights(exponents), self._factor(lengths))

    def _weights(self, exponents: Floats) -> Floats:
        raise NotImplementedError

    def _factor(self, lengths: NDArray[np.int64] | None) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class StaticScaling(WeightedScaling):
    """A scaling with a constant factor."""

    factor: float
    per: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "factor", _checks.finite("factor", self.factor, minimum=1.0))

    def _factor(self, lengths: NDArray[np.int64] | None) -> float:
        return self.factor


@dataclass(frozen=True, repr=False)
class GrowingFactor(LayeredScaling):
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


@dataclass(frozen=True, repr=False)
class DynamicScaling(GrowingFactor, WeightedScaling):
    """A scaling of slopes whose factor grows with the text."""


class FlattestHeads(WeightedScaling):
    """A scaling with a field `share`, the share of heads that it stretches: the flattest ones."""

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        share = _checks.share("share", self.share, all_allowed=True)
        object.__setattr__(self, "share", share)

    def _weights(self, exponents: Floats) -> Floats:
        """Return 1 for the ceil(share H) heads with the flattest slopes, else 0."""
        # Rounding may lift a product such as 0.1 * 30 just above an integer.
        count = max(math.ceil(self.share * len(exponents) * (1.0 - 1e-12)), 1)
        weights = np.zeros_like(exponents)
        weights[np.argsort(-exponents, kind="stable")[:count]] = 1.0
        return weights
