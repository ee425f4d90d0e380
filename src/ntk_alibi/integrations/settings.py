"""The settings of a patch, its own or of the configuration, and where a model keeps them."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from torch import nn

from ntk_alibi import _checks
from ntk_alibi.integrations import own_bias
from ntk_alibi.integrations.overriding import Restored
from ntk_alibi.integrations.tokens import NAME
from ntk_alibi.masks import EVERYTHING, Mask
from ntk_alibi.methods import parse_method, train_length_or_default
from ntk_alibi.positions.log_n import LogN, as_log_n
from ntk_alibi.scaling import Scaling, checked_scaling, scaling_from_config, scaling_per, trained_at

#: The attribute of a patched model that holds what it keeps, a `Patched`.
PATCHED = "_ntk_alibi_patched"

#: Forms of attention of a patched model.
ATTENTIONS = ("fused", "eager", "traceable")

#: Settings that a model's configuration may have, each as `alibi_` and its name.
CONFIGURED = ("scaling", "attention", "window", "sink", "causal_block", "log_n")

#: Their names in a configuration.
CONFIG_NAMES = tuple(f"alibi_{name}" for name in CONFIGURED)


@dataclass(frozen=True, repr=False)
class Settings:
    """The choices of one patch."""

    scaling: Scaling | None
    attention: Literal["fused", "eager", "traceable"] = "fused"
    mask: Mask = EVERYTHING
    log_n: LogN | None = None
    bias: Any = None

    @property
    def traceable(self) -> bool:
        """Whether layers attend by transformers' own masks, in plain torch."""
        return self.attention == "traceable"

    @property
    def limits(self) -> dict[str, Any]:
        """The window, causal_block and sink of `patch`."""
        limits = self.mask._asdict()
        del limits["causal"]
        return limits

    def __repr__(self) -> str:
        """Return the choices that are not the default, as `patch` takes them."""
        first = f"{self.scaling!r}" if self.bias is None else f"bias={self.bias!r}"
        choices = [first, f"attention={self.attention!r}"]
        choices += [f"{name}={value}" for name, value in self.limits.items() if value]
        if self.log_n is not None:
            choices.append(f"log_n={self.log_n!r}")
        return ", ".join(choices)

    def to_config(self) -> dict[str, Any]:
        """Return the entries of a configuration for the choices that are not the default.

        "traceable", which changes results by rounding at most, has no entry.
        """
        entries = self.limits
        if self.bias is not None:
            if any(not isinstance(x, nn.Module) for x in own_bias.by_layer(self.bias).values()):
                raise ValueError(
                    "scaling must not be a bias object to be saved with a model, since a "
                    "configuration cannot hold one, "
                    f"got {_checks.briefly(self.bias)}: call na.unpatch(model) "
                    "before save_pretrained, and na.patch after loading"
                )
            warnings.warn(
                "the model's config.json cannot hold the bias of its patch; its weights are saved "
                f"as {own_bias.NAME}: after loading, call na.patch(model, a new module), and "
                "model.load_state_dict with the saved weights",
                stacklevel=2,
            )
        if self.scaling is not None:
            if not hasattr(self.scaling, "to_config"):
                raise ValueError(
                    "scaling must have to_config to be saved with a model, as NTK(factor=4.0) has, "
                    f"got {self.scaling!r}: call na.unpatch(model) before save_pretrained, and "
                    "na.patch after loading"
                )
            entries["scaling"] = cast(Any, self.scaling).to_config()
        if self.attention == "eager":
            entries["attention"] = self.attention
        if self.log_n is not None:
            entries["log_n"] = self.log_n.to_config()
        return {name: value for name, value in entries.items() if value}


@dataclass(eq=False)
class Patched:
    """What a patched model keeps; a deep copy of the model has one of its own.

    Attributes:
        family: the family of the model.
        stack: the settings of its patches, innermost last, None for settings of its configuration.
        form: the form of attention of its layers, "" while they are stock ones.
        released: what `release` of the family returned.
        replaced: arguments of `overriding.restore`.
    """

    family: Any
    stack: tuple[Settings | None, ...] = ()
    form: str = ""
    released: Any = None
    replaced: list[Restored] = field(default_factory=list)


def check_layers(scaling: Any, count: int) -> None:
    """Check that a scaling applies to layers that a model has."""
    layers = getattr(scaling, "layers", None) or ()
    if layers and max(layers) >= count:
        raise ValueError(
            f"layers must be below {count}, the number of the model's layers, got {scaling!r}"
        )


def stack_of(target: Any) -> tuple[Settings | None, ...]:
    """Return the settings of a model's patches, innermost last."""
    patched: Patched | None = getattr(target, PATCHED, None)
    return () if patched is None else patched.stack


def form_of(target: Any) -> str:
    """Return the form of attention in force."""
    settings: Settings | None = getattr(target, PATCHED).stack[-1]
    if settings is None:
        return getattr(target.config, "alibi_attention", None) or "fused"
    return settings.attention


def scaling_and_log_n(scaling: Any, log_n: Any, train_length: int | None) -> tuple[Any, Any]:
    """Return the scaling and the factor of scores of a method by name, a dict or an object.

    Args:
        scaling: what `patch` takes.
        log_n: what `patch` takes.
        train_length: the training length of methods by name, and of scalings without one; None if
            the model's configuration has none.
    """
    if isinstance(scaling, str):
        method = parse_method(scaling, train_length)
        _checks.at_most_one(**{"log_n": log_n, "a factor in scaling": method.log_n})
        return method.scaling, log_n if method.log_n is None else method.log_n
    if isinstance(scaling, Mapping):
        scaling = scaling_from_config(scaling)
    if hasattr(scaling, "trained_at") and train_length is not None:
        scaling = trained_at(scaling, train_length)
    return scaling, log_n


def warn_of_another_train_length(scaling: Any, stated: int | None) -> None:
    """Warn of a scaling whose training length is far from the one in the model's config."""
    given = getattr(scaling, "train_length", None)
    if given and stated and max(given, stated) > 2 * min(given, stated):
        warnings.warn(
            f"train_length of {scaling!r} is {given}, but the model's config has {stated}: leave "
            "it out to take the value of the config",
            stacklevel=5,
        )


def settings_of(
    scaling: Scaling | None = None,
    *,
    attention: Any = "fused",
    log_n: Any = None,
    bias: Any = None,
    **limits: Any,
) -> Settings:
    """Return the settings of `patch`'s arguments, checked as far as possible without a model.

    Args:
        scaling: the scaling.
        attention: the form of the attention.
        log_n: log-n scaling.
        bias: a bias in place of ALiBi, as `own_bias.bias_of_argument` returns it, or None.
        limits: window, sink and causal_block of `patch`.
    """
    checked_scaling(scaling, one_layer=False)
    _checks.choice("attention", attention, ATTENTIONS)
    mask = Mask.checked(**limits)
    if not mask.limited:
        _checks.check_equal("sink", mask.sink, 0, "without window or causal_block")
    log_n = as_log_n(log_n)
    if bias is not None:
        _checks.choice("attention with a bias", attention, ("fused", "eager"))
    settings = Settings(scaling, attention, mask, log_n, bias=bias)
    if settings.traceable:
        form = "with attention='traceable'"
        if scaling_per(scaling) is not None:
            raise ValueError(
                f"scaling must be static {form}, got {scaling!r}, whose slopes depend on "
                "the entries of a mask: use a scaling without lengths such as NTK(factor), or "
                "attention='fused'"
            )
        if mask != EVERYTHING:
            raise ValueError(
                f"window, sink and causal_block must not be given {form}, which takes the masks "
                f"that transformers makes, got {settings!r}: use attention='fused'"
            )
    return settings


def refuse_traceable(attention: Any) -> None:
    """Refuse to trace a model that makes no masks of queries and keys."""
    if attention == "traceable":
        raise ValueError(
            "attention must not be 'traceable' for a model made with "
            "attn_implementation='ntk_alibi', which makes no masks of queries and keys: make it "
            "with attn_implementation='eager'"
        )


def current(target: Any) -> Settings:
    """Return the settings in force."""
    settings = stack_of(target)[-1]
    return of_config(target.config) if settings is None else settings


def of_config(config: Any) -> Settings:
    """Return the settings of a model's configuration, whose name an error has: alibi_window."""
    options = {
        name: value
        for name in CONFIGURED
        if (value := getattr(config, f"alibi_{name}", None)) is not None
    }
    scaling, log_n = options.pop("scaling", None), options.pop("log_n", None)
    if not isinstance(scaling, str | Mapping | type(None)):
        raise TypeError(
            "alibi_scaling must be None, a method's name or a dict such as "
            f"{{'alibi_type': 'ntk', 'factor': 4.0}}, got {scaling!r}"
        )
    try:
        refuse_traceable(options.get("attention"))
        _checks.choice("attention", options.get("attention", "fused"), ("fused", "eager"))
        scaling, log_n = scaling_and_log_n(scaling, log_n, train_length_or_default(config))
        return settings_of(scaling, log_n=log_n, **options)
    except (TypeError, ValueError) as error:
        if str(error).partition(" ")[0] not in CONFIGURED:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"alibi_{error}") from error


def write_plainly(config: Any) -> None:
    """Write a configuration's method as dicts, in the form of na.scaling_from_config."""
    if isinstance(getattr(config, "alibi_scaling", None), Mapping | type(None)):
        return
    entries = of_config(config).to_config()
    for name in ("scaling", "log_n"):
        setattr(config, f"alibi_{name}", entries.get(name))


def patched_config(own: Any) -> Any:
    """Return a configuration that shares all attributes of another but the name of its attention.

    transformers chooses the mask function of a pass by that name; other models may use the other.
    """
    kind: Any = type(own)
    return _view(_class_like(kind), own)


def _view(kind: Any, own: Any) -> Any:
    view = object.__new__(kind)
    view.__dict__ = own.__dict__
    view.own_config = own
    return view


def own_config(config: Any) -> Any:
    """Return the configuration of which one of `patched_config` is a view, or the one given."""
    return getattr(config, "own_config", config)


@functools.cache
def _class_like(config_class: type) -> type:
    """Return a class with the name of a class of configurations, by which transformers finds it.

    Called, it makes a configuration of that class: none that is new belongs to a patched model.
    """
    stock: Any = config_class

    def new(_: Any, *args: Any, **given: Any) -> Any:
        return stock(*args, **given)

    def reduced(self: Any, _: Any) -> tuple[Any, ...]:  # of pickles
        return patched_config, (self.own_config,)

    def copied(self: Any) -> Any:
        return _view(type(self), copy.copy(self.own_config))

    def deeply_copied(self: Any, memo: Any) -> Any:
        return _view(type(self), copy.deepcopy(self.own_config, memo))

    def equal(self: Any, other: Any) -> Any:
        return self.own_config == own_config(other)

    def set_name(self: Any, value: Any) -> None:
        self.own_config._attn_implementation = value

    def set_checked_name(self: Any, value: Any) -> None:
        if value != NAME:  # a model that is made of this configuration stores what it read
            vars(self)["_attn_implementation_internal"] = value

    return type(
        config_class.__name__,
        (config_class,),
        {
            "__module__": config_class.__module__,
            "__slots__": ("own_config",),
            "__doc__": stock.__doc__,
            "__new__": new,
            "__reduce_ex__": reduced,
            "__copy__": copied,
            "__deepcopy__": deeply_copied,
            "__eq__": equal,
            "_attn_implementation": property(lambda _: NAME, set_name),
            "_attn_implementation_internal": property(lambda _: NAME, set_checked_name),
        },
    )
