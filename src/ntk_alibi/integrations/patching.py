"""What the patches of all model families share: the handle, nesting, overriding methods."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Literal, TypeAlias

from packaging.version import Version
from torch import nn

from ntk_alibi import _validation
from ntk_alibi.scaling import Scaling, scaling_from_config
from ntk_alibi.slopes import scaling_per
from ntk_alibi.torch.sight import Sight

#: Versions of transformers whose modeling code the patches were read against;
#: tests/test_integrations_versions.py lists the ones tested. The upper bound is exclusive.
TRANSFORMERS_VERSIONS = (Version("5.4"), Version("6"))

#: Where a patched model keeps its settings, newest last, None for those of its configuration. A
#: plain attribute, so that a deep copy has its own.
_STACK = "_ntk_alibi_settings"

#: Where it keeps the handle of the hook before its forward.
_HOOK = "_ntk_alibi_hook"

#: Where a module keeps plain values that were replaced.
_KEPT = "_ntk_alibi_kept"

#: What a patched model may attend with.
ATTENTIONS = ("fused", "sdpa", "eager")

#: Whose rounding the bias may have.
COMPATS = ("exact", "transformers")

#: Owner, attribute, and what takes its place.
Replacement: TypeAlias = tuple[nn.Module, str, Any]

_lock = threading.RLock()


@dataclass(frozen=True, repr=False)
class Settings:
    """One patch's choices."""

    scaling: Scaling | None
    attention: Literal["fused", "sdpa", "eager"] = "fused"
    compat: Literal["exact", "transformers"] = "exact"
    sight: Sight = field(default_factory=Sight)

    def __repr__(self) -> str:
        """The choices that are not the default, as `patch` takes them."""
        choices = [f"{self.scaling!r}", f"attention={self.attention!r}"]
        if self.compat != "exact":
            choices.append(f"compat={self.compat!r}")
        limits = dataclasses.asdict(self.sight)
        choices += [f"{name}={value}" for name, value in limits.items() if value]
        return ", ".join(choices)


@dataclass(frozen=True)
class Family:
    """A model family: how to know its ALiBi models, and what to replace in one.

    Attributes:
        name: in messages.
        model: the class whose forward begins a pass.
        attention: the class of its attention layers.
        expected: of methods of transformers, the parameters they must have.
        begin: runs before the model's forward, with keyword arguments.
        replacements: of a model: owner, attribute and what takes its place, a function of the owner
            or a plain value. The functions ask `current` for their settings at every call.
        check: raises if this very model cannot be patched so.
        attentions: choices that the family has.
        rounds: whether transformers rounds the bias in a way that compat="transformers" repeats.
        others: classes besides the attention layers' whose forward is replaced.
    """

    name: str
    model: type[nn.Module]
    attention: type[nn.Module]
    expected: dict[tuple[type[nn.Module], str], tuple[str, ...]]
    begin: Callable[..., Any]
    replacements: Callable[[Any], list[Replacement]]
    check: Callable[[Any, Settings], None]
    attentions: tuple[str, ...] = ATTENTIONS
    rounds: bool = False
    others: tuple[type[nn.Module], ...] = ()

    def find(self, module: nn.Module) -> list[nn.Module]:
        """The models of this family inside a module."""
        return [part for part in module.modules() if isinstance(part, self.model)]


class PatchHandle:
    """A patch in force, until `undo` or the end of its `with` block.

    Attributes:
        scaling: the patch's scaling.
        attention: the patch's attention.
    """

    def __init__(self, family: Family, targets: list[nn.Module], settings: Settings) -> None:
        self._family = family
        self._targets = targets
        self._settings = settings

    @property
    def scaling(self) -> Scaling | None:
        """The patch's scaling."""
        return self._settings.scaling

    @property
    def attention(self) -> str:
        """The patch's attention."""
        return self._settings.attention

    def undo(self) -> None:
        """Take this patch back; the ones around and inside it stay. A second time does nothing."""
        with _lock:
            for target in self._targets:
                stack = _stack(target)
                kept = tuple(settings for settings in stack if settings is not self._settings)
                if len(kept) == len(stack):
                    continue
                setattr(target, _STACK, kept)
                if not kept:
                    _uninstall(self._family, target)
                    delattr(target, _STACK)
            self._targets = []

    def __enter__(self) -> PatchHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "in force" if self._targets else "undone"
        return f"<patch of {self._family.name}, {self._settings!r}, {state}>"


def apply(family: Family, targets: list[nn.Module], settings: Settings) -> PatchHandle:
    """Check all targets, then patch them."""
    check_version()
    for target in targets:
        _check(family, target, settings)
    with _lock:
        for target in targets:
            if not _stack(target):
                _install(family, target)
            setattr(target, _STACK, (*_stack(target), settings))
    return PatchHandle(family, targets, settings)


def _check(family: Family, target: nn.Module, settings: Settings) -> None:
    """That the target and the modeling code are what the family's patch was written for."""
    _validation.choice(f"attention for {family.name}", settings.attention, family.attentions)
    check_compat(family, settings)
    for (owner, method), names in family.expected.items():
        function = getattr(owner, method)
        if missing := set(names) - set(inspect.signature(function).parameters):
            raise RuntimeError(
                f"transformers {transformers_version()} is not what the {family.name} patch "
                f"expects: {function.__qualname__} has no {', '.join(sorted(missing))}"
            )
    layers = [
        owner
        for owner, name, _ in family.replacements(target)
        if name == "forward" and not isinstance(owner, family.others)
    ]
    for part, known in (target, family.model), *((layer, family.attention) for layer in layers):
        if type(part).forward is not known.forward:
            raise ValueError(
                f"model must be computed as transformers' {known.__name__} is, got a "
                f"{type(part).__name__} with a forward of its own"
            )
    family.check(target, settings)


def check_compat(family: Family, settings: Settings) -> None:
    """That the family has such rounding, and that these settings keep the bias of the keys alone.

    transformers' bias is of the keys alone: one number for all queries, which no slope of theirs
    can change and torch's kernel cannot add without a matrix of all pairs.
    """
    _validation.choice(
        f"compat for {family.name}", settings.compat, COMPATS if family.rounds else COMPATS[:1]
    )
    if settings.compat == "transformers":
        _validation.key_only(settings.scaling, scaling_per(settings.scaling))
        _validation.choice(
            "attention with compat='transformers'", settings.attention, ("fused", "eager")
        )
        if settings.sight != Sight():
            raise ValueError(
                "compat must be 'exact' with window, sink or causal_block, which transformers does "
                f"not have, got {settings.compat!r}"
            )


def _install(family: Family, target: nn.Module) -> None:
    handle = target.register_forward_pre_hook(family.begin, with_kwargs=True)
    setattr(target, _HOOK, handle)
    for replacement in family.replacements(target):
        override(*replacement)


def _uninstall(family: Family, target: nn.Module) -> None:
    getattr(target, _HOOK).remove()
    delattr(target, _HOOK)
    for owner, name, _ in family.replacements(target):
        restore(owner, name)


def follow_config(family: Family, target: nn.Module) -> None:
    """Patch a new model for good, as its configuration says at each call."""
    check_version()
    _check(family, target, Settings(None))
    _install(family, target)
    setattr(target, _STACK, (None,))


def current(target: Any) -> Settings:
    """The settings in force."""
    settings = _stack(target)[-1]
    if settings is not None:
        return settings
    given = {
        name: getattr(target.config, f"alibi_{name}")
        for name in ("scaling", "window", "sink", "causal_block")
        if getattr(target.config, f"alibi_{name}", None) is not None
    }
    if "scaling" in given:
        given["scaling"] = scaling_from_config(given["scaling"])
    return settings_of(**given)


def settings_of(
    scaling: Scaling | None = None,
    *,
    attention: Any = "fused",
    compat: Any = "exact",
    window: int | None = None,
    sink: int = 0,
    causal_block: int | None = None,
) -> Settings:
    """Arguments of `patch`, checked as far as they can be without a model."""
    _validation.scaling(scaling)
    _validation.choice("attention", attention, ATTENTIONS)
    _validation.choice("compat", compat, COMPATS)
    window, sink, causal_block = _validation.sight(window, sink, causal_block)
    return Settings(scaling, attention, compat, Sight(window, causal_block, sink))


def _stack(target: nn.Module) -> tuple[Settings | None, ...]:
    return getattr(target, _STACK, ())


def transformers_version() -> str:
    """The installed version; transformers may replace its own module while it is imported."""
    version: str = import_module("transformers").__version__
    return version


def check_version() -> None:
    """Refuse versions of transformers that nobody has looked at."""
    installed, (low, high) = transformers_version(), TRANSFORMERS_VERSIONS
    if not low <= Version(installed) < high:
        raise RuntimeError(
            f"transformers must be >= {low} and < {high} for ntk_alibi's patches, got {installed}: "
            "in a version nobody checked a patch may silently do nothing"
        )


def override(module: nn.Module, name: str, replacement: Any) -> None:
    """Give this instance another method, bound to it, or another plain value.

    Methods are bound by a partial, which deep copies and pickles bind to the copy.
    """
    if callable(replacement):
        setattr(module, _slot(module, name), partial(replacement, module))
    else:
        setattr(module, _KEPT, {**getattr(module, _KEPT, {}), name: getattr(module, name)})
        setattr(module, name, replacement)


def restore(module: nn.Module, name: str) -> None:
    """Undo `override`."""
    slot, kept = _slot(module, name), getattr(module, _KEPT, {})
    if name in kept:
        setattr(module, name, kept.pop(name))
        if not kept:
            delattr(module, _KEPT)
    elif slot == name:
        delattr(module, slot)
    else:
        setattr(module, slot, getattr(type(module), name).__get__(module))


def _slot(module: nn.Module, name: str) -> str:
    """Where accelerate's hooks, if there are any, keep a module's own forward."""
    return "_old_forward" if name == "forward" and hasattr(module, "_old_forward") else name
