"""What the patches of all model families share: the handle, nesting, overriding methods."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

from packaging.version import Version
from torch import nn

from ntk_alibi.scaling import Scaling

#: Versions of transformers whose modeling code the patches were read against;
#: tests/test_integrations_versions.py lists the ones tested. The upper bound is exclusive.
TRANSFORMERS_VERSIONS = (Version("5.4"), Version("6"))

#: Where a patched model keeps its settings, newest last. A plain attribute, so that a deep copy has
#: its own.
_STACK = "_ntk_alibi_settings"

_lock = threading.RLock()


@dataclass(frozen=True)
class Settings:
    """One patch's choices."""

    scaling: Scaling | None
    attention: Literal["sdpa", "eager"]


@dataclass(frozen=True)
class Family:
    """A model family: how to find its ALiBi models in a module, and what to do to one.

    Attributes:
        name: in messages.
        find: the ALiBi models inside a module.
        check: raises if a model or the installed modeling code is not what install expects.
        install: patches a model, once; the patch asks `current` for its settings at every call.
        uninstall: the reverse.
    """

    name: str
    find: Callable[[nn.Module], list[nn.Module]]
    check: Callable[[nn.Module, Settings], None]
    install: Callable[[nn.Module], None]
    uninstall: Callable[[nn.Module], None]


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
                    self._family.uninstall(target)
                    delattr(target, _STACK)
            self._targets = []

    def __enter__(self) -> PatchHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "in force" if self._targets else "undone"
        choices = f"{self.scaling!r}, attention={self.attention!r}"
        return f"<patch of {self._family.name}, {choices}, {state}>"


def apply(family: Family, targets: list[nn.Module], settings: Settings) -> PatchHandle:
    """Check all targets, then patch them."""
    for target in targets:
        family.check(target, settings)
    with _lock:
        for target in targets:
            if not _stack(target):
                family.install(target)
            setattr(target, _STACK, (*_stack(target), settings))
    return PatchHandle(family, targets, settings)


def current(target: nn.Module) -> Settings:
    """The settings in force."""
    return _stack(target)[-1]


def _stack(target: nn.Module) -> tuple[Settings, ...]:
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


def override(module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """Bind function to this instance in place of its method.

    By a partial, which deep copies and pickles bind to the copy.
    """
    setattr(module, _slot(module, name), partial(function, module))


def restore(module: nn.Module, name: str) -> None:
    """Undo `override`."""
    slot = _slot(module, name)
    if slot == name:
        delattr(module, slot)
    else:
        setattr(module, slot, getattr(type(module), name).__get__(module))


def _slot(module: nn.Module, name: str) -> str:
    """Where accelerate's hooks, if there are any, keep a module's own forward."""
    return "_old_forward" if name == "forward" and hasattr(module, "_old_forward") else name
