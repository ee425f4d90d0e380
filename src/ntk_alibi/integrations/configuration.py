"""The choices that a model's configuration makes, for models that follow it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.integrations.settings import Settings, scaling_and_log_n, settings_of, stack_of
from ntk_alibi.methods import train_length_or_default

#: Settings that a model's configuration may have, each as `alibi_` and its name.
CONFIGURED = ("scaling", "attention", "window", "sink", "causal_block", "log_n")


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
    try:
        return _of_config(config)
    except (TypeError, ValueError) as error:
        if str(error).partition(" ")[0] not in CONFIGURED:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"alibi_{error}") from error


def _of_config(config: Any) -> Settings:
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
    refuse_traceable(options.get("attention"))
    _checks.choice("attention", options.get("attention", "fused"), ("fused", "eager"))
    scaling, log_n = scaling_and_log_n(scaling, log_n, train_length_or_default(config))
    return settings_of(scaling, log_n=log_n, **options)


def write_plainly(config: Any) -> None:
    """Write a configuration's method as dicts, in the form of na.scaling_from_config."""
    if isinstance(getattr(config, "alibi_scaling", None), Mapping | type(None)):
        return
    entries = of_config(config).to_config()
    for name in ("scaling", "log_n"):
        setattr(config, f"alibi_{name}", entries.get(name))
