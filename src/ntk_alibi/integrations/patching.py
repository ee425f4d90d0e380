"""Apply patches to live models, and undo them."""

from __future__ import annotations

import threading

from torch import nn

from ntk_alibi.integrations import linear, shared_loss
from ntk_alibi.integrations.family import Family, check, check_version
from ntk_alibi.integrations.overriding import override, restore
from ntk_alibi.integrations.settings import STACK, Settings, stack_of
from ntk_alibi.positions.log_n import LogN
from ntk_alibi.scaling import Scaling

#: The attribute of a patched model that keeps the handle of its forward pre-hook.
_HOOK = "_ntk_alibi_hook"

_lock = threading.RLock()


class PatchHandle:
    """A patch in force, until `undo` or the end of its `with` block.

    Attributes:
        scaling: the patch's scaling.
        attention: the patch's attention.
        log_n: the patch's factor of scores, or None.
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

    @property
    def log_n(self) -> LogN | None:
        """The patch's factor of scores."""
        return self._settings.log_n

    def undo(self) -> None:
        """Undo this patch; patches around and inside it stay. A second call does nothing."""
        with _lock:
            for target in self._targets:
                stack = stack_of(target)
                kept = tuple(settings for settings in stack if settings is not self._settings)
                if len(kept) == len(stack):
                    continue
                if kept:
                    _stack(self._family, target, kept)
                else:
                    _uninstall(self._family, target)
            self._targets = []

    def __enter__(self) -> PatchHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "in force" if self._targets else "undone"
        return f"<patch of {self._family.name}, {self._settings!r}, {state}>"


def apply(
    model: nn.Module, family: Family, targets: list[nn.Module], settings: Settings
) -> PatchHandle:
    """Check all targets in a model, then patch them."""
    check_version()
    linear.check(settings)
    for target in targets:
        check(family, target, settings)
    with _lock:
        for target in targets:
            if not stack_of(target):
                _install(family, target)
            linear.keep_heads(model, target)
            shared_loss.keep_models(model, target)
            _stack(family, target, (*stack_of(target), settings))
    return PatchHandle(family, targets, settings)


def in_force(family: Family, targets: list[nn.Module]) -> list[PatchHandle]:
    """Return a handle for each patch of the targets, in the order in which they were applied."""
    patches: dict[int, Settings] = {}
    for target in targets:
        patches |= {id(settings): settings for settings in stack_of(target) if settings is not None}
    return [
        PatchHandle(family, [x for x in targets if any(y is z for z in stack_of(x))], y)
        for y in patches.values()
    ]


def _install(family: Family, target: nn.Module) -> None:
    handle = target.register_forward_pre_hook(family.begin, with_kwargs=True)
    setattr(target, _HOOK, handle)
    for replacement in family.replacements(target):
        override(*replacement)


def _stack(family: Family, target: nn.Module, stack: tuple[Settings | None, ...]) -> None:
    """Let these settings be in force, the last one foremost."""
    setattr(target, STACK, stack)
    foremost = stack[-1] or Settings(None)
    linear.choose(target, family.linear, foremost)
    shared_loss.choose(target, foremost.ranks)


def _uninstall(family: Family, target: nn.Module) -> None:
    linear.give_back(target)
    shared_loss.give_back(target)
    delattr(target, STACK)
    getattr(target, _HOOK).remove()
    delattr(target, _HOOK)
    for owner, name, _ in family.replacements(target):
        restore(owner, name)


def follow_config(family: Family, target: nn.Module) -> None:
    """Patch a new model permanently; its configuration is read at each call."""
    check_version()
    check(family, target, Settings(None))
    _install(family, target)
    _stack(family, target, (None,))
