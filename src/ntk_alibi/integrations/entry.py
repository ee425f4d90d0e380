"""The entry of a patch in a model's configuration, `config.ntk_alibi`, which is saved with it."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

from torch import nn

from ntk_alibi.integrations.graph_operator import in_force
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.methods import ENTRY, ORIGINAL, method_name, parse_method
from ntk_alibi.scaling import is_dynamic

#: Configurations that a patch changed, each with the entry it had before, or nothing.
Written = list[tuple[Any, tuple[Any, ...]]]


def entry_of(settings: Settings, given: Any, train_length: int | None) -> dict[str, Any] | None:
    """Return the entry for the settings of a patch, without defaults; None if JSON has no words.

    Args:
        settings: the settings.
        given: the method that `patch` got, whose name is kept.
        train_length: the training length that a method by name gets from the configuration.
    """
    method: Any = given if isinstance(given, str) else method_name(settings.scaling)
    if settings.bias is not None:
        return None
    if not isinstance(given, str) and not _names_scaling(method, settings.scaling, train_length):
        if not callable(getattr(settings.scaling, "to_config", None)):
            return None
        method = settings.scaling.to_config()  # type: ignore[union-attr]
    entry = {"method": method, **settings.limits}
    if settings.attention != "fused":
        entry["attention"] = settings.attention
    named = isinstance(given, str) and parse_method(given, train_length).log_n is not None
    if settings.log_n is not None and not named:
        entry["log_n"] = settings.log_n.to_config()
    if isinstance(method, str) and (is_dynamic(settings.scaling) or named):
        entry["train_length"] = train_length
    return {key: value for key, value in entry.items() if value}


def _names_scaling(name: str, scaling: Any, train_length: int | None) -> bool:
    """Return whether a method's name means a scaling."""
    if scaling is None:
        return name == ORIGINAL
    return name != repr(scaling) and bool(parse_method(name, train_length).scaling == scaling)


def configs_of(model: nn.Module, targets: Iterable[Any]) -> list[Any]:
    """Return the configurations that hold the entry of a model's patch.

    These are the configurations of the patched models, and others of their kind: of a model around
    them, or inside of its own, from which it makes the patched models.
    """
    targets = list(targets)
    kinds = tuple({type(x.config) for x in targets if hasattr(x, "config")})
    inside = {id(x) for x in targets}
    found: dict[int, Any] = {}
    for part in model.modules():
        config = vars(part).get("config")
        known = config is None or id(config) in found
        if known or all(id(x) not in inside for x in part.modules()):
            continue
        for own in (config, *getattr(config, "__dict__", {}).values()):
            if isinstance(own, kinds):
                found[id(own)] = own
    return list(found.values())


def with_earlier(configs: Iterable[Any], earlier: Written) -> Written:
    """Return configurations with the entries that they had before patches, and what earlier has.

    Args:
        configs: the configurations, which may be copies of some that a patch has changed.
        earlier: what a patch has written, or nothing.
    """
    written = list(earlier)
    for config in configs:
        if all(config is not known for known, _ in earlier):
            now = _get(config)
            before = (before for known, before in earlier if _get(known) == now)
            written.append((config, next(before, now)))
    return written


def write_entry(configs: Iterable[Any], entry: dict[str, Any] | None) -> None:
    """Write an entry into configurations, or take one away."""
    for config in configs:
        _set(config, () if entry is None else (dict(entry),))


def restore_entries(written: Written, targets: list[Any]) -> None:
    """Give configurations the entries of `with_earlier`, except those of other patched models.

    Args:
        written: what `with_earlier` returned.
        targets: the models that have lost their patches.
    """
    shared = {id(x) for _, (x, _) in written_by_others([x for x, _ in written], targets)}
    for config, before in written:
        if id(config) not in shared:
            _set(config, before)


def written_by_others(configs: list[Any], targets: list[Any]) -> list[tuple[Any, Any]]:
    """Return patches of other models in the same configuration objects, and what they wrote."""

    def found() -> list[tuple[Any, Any]]:
        others = [x for x in in_force() if all(x.model is not y for y in targets)]
        pairs = [(patch, pair) for patch in others for pair in patch.written]
        return [(patch, pair) for patch, pair in pairs if any(pair[0] is x for x in configs)]

    if not found():
        return []
    gc.collect()  # a model that is gone, but not collected yet, is no other
    return found()


def check_own_configs(others: list[tuple[Any, Any]], entry: Any) -> None:
    """Refuse a configuration object of another patched model, whose patch is saved in it.

    Args:
        others: what `written_by_others` returned.
        entry: the entry of a new patch.
    """
    if any(patch.entry != entry for patch, _ in others):
        raise ValueError(
            "model must have a configuration of its own, in which its patch is saved, got one "
            "object for two models with different patches: build each model of "
            "copy.deepcopy(config)"
        )


def _get(config: Any) -> tuple[Any, ...]:
    return (getattr(config, ENTRY),) if hasattr(config, ENTRY) else ()


def _set(config: Any, entry: tuple[Any, ...]) -> None:
    if entry:
        setattr(config, ENTRY, *entry)
    elif hasattr(config, ENTRY):
        delattr(config, ENTRY)
