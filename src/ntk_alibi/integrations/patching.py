"""Patches of live models: applied to all models inside one, and taken back by a handle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import nn

from ntk_alibi.integrations import checks
from ntk_alibi.integrations.classes import PATCH
from ntk_alibi.integrations.entry import (
    check_own_configs,
    configs_of,
    restore_entries,
    with_earlier,
    write_entry,
    written_by_others,
)
from ntk_alibi.integrations.family import Family
from ntk_alibi.integrations.model_patch import LOCK, Patch, patch_of, swap
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.transformers_versions import version_is_tested
from ntk_alibi.methods import ENTRY, read_entry


class PatchHandle:
    """A patch in force, until `undo`, the end of its `with` block, or another patch of the model.

    The block ends the patch for good, and gives back the patch that it replaced: blocks may be
    nested. `undo` takes all patches of the model back.

    Attributes:
        scaling: the patch's scaling, or None.
        bias: its bias in place of ALiBi: an object, a module, a dict of layers, or None.
        attention: its attention.
        log_n: its factor of scores, a `LogN`, or None.
    """

    def __init__(
        self, patches: list[Patch], model: nn.Module, replaced: Sequence[Patch] = ()
    ) -> None:
        self._patches, self._model, self._replaced = patches, model, replaced
        self._entered = False
        settings = patches[0].settings
        self.scaling = settings.scaling
        self.bias = settings.bias
        self.attention = settings.attention
        self.log_n = settings.log_n

    def undo(self) -> None:
        """Undo this patch; one that was undone or replaced stays so."""
        with LOCK:
            live = [patch for patch in self._patches if patch.in_force]
            targets = [patch.model for patch in live]
            earlier = [pair for patch in live for pair in patch.written]
            written = with_earlier(configs_of(self._model, targets), earlier)
            for patch in self._patches:
                patch.ended = True
            for target in targets:
                swap(target, None)
            restore_entries(written, targets)

    def __enter__(self) -> PatchHandle:
        """Begin the block at whose end this patch is undone.

        Raises:
            ValueError: the patch is not in force, or has such a block already.
        """
        in_force = self._state == "in force"
        if not in_force or self._entered:
            state = "inside a block of its own" if in_force else f"that was {self._state}"
            raise ValueError(
                f"patch must be in force and have one with block, got one {state}: call "
                "na.patch(model, ...) again"
            )
        self._entered = True
        return self

    def __exit__(self, *exception: object) -> None:
        with LOCK:
            if self._state != "in force":
                return
            self.undo()
            for patch in self._replaced:
                if not patch.ended:
                    swap(patch.model, patch)
                    write_entry([x for x, _ in patch.written], patch.entry)

    def __repr__(self) -> str:
        return f"<{self._patches[0]!r}, {self._state}>"

    @property
    def _state(self) -> str:
        """Whether the patch is in force, replaced or undone."""
        if any(patch.in_force for patch in self._patches):
            return "in force"
        return "replaced" if any(hasattr(x.model, PATCH) for x in self._patches) else "undone"


def apply(
    model: nn.Module,
    family: Family,
    targets: list[nn.Module],
    settings: Settings,
    entry: dict[str, Any] | None = None,
) -> PatchHandle:
    """Patch all targets in a model, whose family has checked that the settings fit.

    Args:
        model: the model that a user has.
        family: the family of the targets.
        targets: the models inside of it whose layers attend.
        settings: the settings.
        entry: the entry of the configuration, or None for none.
    """
    for target in targets:
        if family.code is not None and not version_is_tested():
            checks.compare_small_model(family, target, partial(_patch_plainly, family))
    with LOCK:
        configs = configs_of(model, targets)
        others = written_by_others(configs, targets)
        check_own_configs(others, entry)
        before = [patch_of(target) for target in targets]
        try:
            for target, old in zip(targets, before, strict=True):
                if old is None and family.code is None:
                    checks.compare_layer(family, target, partial(_patch_plainly, family))
                swap(target, Patch(family, target, settings, entry))
        except BaseException:  # a half patched model never remains
            for target, old in zip(targets, before, strict=True):
                swap(target, old)
            raise
        patches: list[Patch] = [getattr(target, PATCH) for target in targets]
        earlier = [pair for old in before if old is not None for pair in old.written]
        earlier += [pair for _, pair in others]
        written = with_earlier(configs, earlier)
        write_entry(configs, entry)
        for patch in patches:
            patch.written = written
    return PatchHandle(patches, model, [patch for patch in before if patch is not None])


def saved_entry(target: Any) -> dict[str, Any] | None:
    """Return the entry that a model's configuration has without patches, or None."""
    own, patch = getattr(target, "config", None), patch_of(target)
    if patch is not None and getattr(own, ENTRY, None) == patch.entry:  # else it was changed since
        for changed, before in patch.written:
            if changed is own:
                return read_entry(SimpleNamespace(**{ENTRY: before[0]}) if before else None)
    return read_entry(own)


def handles(model: nn.Module, targets: list[Any]) -> list[PatchHandle]:
    """Return a handle for each patch of the targets inside a model."""
    found: dict[int, list[Patch]] = {}
    for target in targets:
        if (patch := patch_of(target)) is not None:
            found.setdefault(id(patch.settings), []).append(patch)
    return [PatchHandle(patches, model) for patches in found.values()]


def _patch_plainly(family: Family, target: nn.Module) -> None:
    """Patch a model without scaling, to compare it with itself."""
    swap(target, Patch(family, target, Settings(None)))
