"""Patches of live models: put in force, taken back."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from torch import nn

from ntk_alibi._torch_state import is_tracing, refuse_script
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations import config, graph_operator, numeric_check, own_bias, version_check
from ntk_alibi.integrations.arguments import positional_names
from ntk_alibi.integrations.attend import Attend
from ntk_alibi.integrations.family import Family, Replacement
from ntk_alibi.integrations.forwards import (
    OWNERS,
    PATCH,
    Owners,
    layer_forward,
    model_forward,
    signature_without_types,
)
from ntk_alibi.integrations.overriding import Restored, override, restore
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.tables import LayerTable
from ntk_alibi.integrations.tokens import MaskMemory
from ntk_alibi.integrations.transformers_versions import version_is_tested

_lock = threading.RLock()
_serials = itertools.count()


@dataclass(eq=False)
class Patch:
    """The patch of one model, which the model keeps; a deep copy of the model has one of its own.

    Attributes:
        family: the family of the model.
        model: the model whose layers attend.
        settings: the choices of the patch.
        entry: its entry in the configuration, or None.
        released: what `release` of the family returned.
        key: the key by which compiled graphs find the patch in force of the model.
        serial: the number of this patch.
        rule: the rule of the model's slopes.
        causal: whether queries see no keys ahead of them.
        traceable: whether layers attend by transformers' own masks, in plain torch.
        attends: the `Attend` of each attention layer.
        numbered: the same by the number of a layer, and whether it attends to other states.
        memory: what layers share of the masks that they get.
        positional: the arguments that the model's forward takes by position, too.
        own_forward: what the model's forward was, if it had one of its own.
        replaced: arguments of `overriding.restore`.
        written: the argument of `config.restore_entries`.
    """

    family: Family
    model: Any
    settings: Settings
    entry: dict[str, Any] | None = None
    released: Any = None
    key: int = -1
    serial: int = field(init=False)
    rule: ModelSlopes = field(init=False)
    causal: bool = field(init=False)
    traceable: bool = field(init=False)
    attends: dict[nn.Module, Attend] = field(init=False)
    numbered: dict[tuple[int, bool], Attend] = field(init=False)
    memory: MaskMemory = field(init=False, default_factory=MaskMemory)
    positional: tuple[str, ...] = field(init=False)
    own_forward: Callable[..., Any] | None = field(init=False, default=None)
    replaced: list[Restored] = field(init=False, default_factory=list)
    written: config.Written = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        family, model = self.family, self.model
        self.serial = next(_serials)
        self.rule, self.causal = family.rule(model), family.is_causal(model)
        self.positional, self.traceable = positional_names(model), self.settings.traceable
        self.attends, self.numbered = {}, {}
        attend_class: Any = Attend
        if self.traceable:
            from ntk_alibi.integrations.forms.traceable import TraceableAttend

            attend_class = TraceableAttend
        tables = None if family.tables is None else family.tables(model)
        for layers, crosses in ((family.layers(model), False), (family.crossing(model), True)):
            for number, layer in enumerate(layers):
                table = None
                if tables is not None and not crosses:
                    first = all(tables[number] is not x for x in tables[:number])
                    table = LayerTable(tables[number], first=first)
                causal, ends = self.causal and not crosses, layer is layers[-1]
                attend = attend_class(self, layer, number, causal, crosses, table, ends)
                self.numbered[number, crosses] = self.attends.setdefault(layer, attend)

    def attend_of(self, layer: nn.Module, place: tuple[int, bool]) -> Attend | None:
        """Return the `Attend` of a layer that got this patch's tokens; None if there is no place.

        Args:
            layer: the layer, which may be a copy.
            place: its number, and whether it attends to other states.
        """
        known = None if is_tracing() else self.attends.get(layer)
        if known is None and place in self.numbered:
            known = replace(self.numbered[place], layer=layer)
        return known

    @property
    def hands_over(self) -> bool:
        """Whether the layers get `Tokens`, not masks."""
        family = self.family
        return family.code is not None and not (self.traceable or family.makes_masks(self.model))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the layers of a copied model belong to the copy's patch."""
        vars(self).update(state)
        self.serial, self.key = next(_serials), graph_operator.key_for(self)
        _own(self)

    def __repr__(self) -> str:
        choices = repr(self.settings)
        if self.settings.scaling is None and self.settings.bias is None:
            choices = choices.replace("None", self.family.own_bias, 1)
        return f"patch of {self.family.name}, {choices}"

    @property
    def in_force(self) -> bool:
        """Whether the model follows this patch."""
        return getattr(self.model, PATCH, None) is self


class PatchHandle:
    """A patch in force, until `undo`, the end of its `with` block, or another patch of the model.

    The block ends the patch for good: for another one call `patch` again.

    Attributes:
        scaling: the patch's scaling, or None.
        bias: its bias in place of ALiBi: an object, a module, a dict of layers, or None.
        attention: its attention.
        log_n: its factor of scores, a `LogN`, or None.
    """

    def __init__(self, patches: list[Patch]) -> None:
        self._patches = patches
        self._entered = False
        settings = patches[0].settings
        self.scaling = settings.scaling
        self.bias = settings.bias
        self.attention = settings.attention
        self.log_n = settings.log_n

    def undo(self) -> None:
        """Undo this patch; one that was undone or replaced stays so."""
        with _lock:
            for patch in self._patches:
                if patch.in_force:
                    _swap(patch.model, None)
                    config.restore_entries(patch.written)

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
        self.undo()

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
            version_check.check(family, target, partial(_patch_plainly, family))
    with _lock:
        before: list[Patch | None] = [getattr(target, PATCH, None) for target in targets]
        try:
            for target, old in zip(targets, before, strict=True):
                if old is None and family.code is None:
                    numeric_check.compare(family, target, partial(_patch_plainly, family))
                _swap(target, Patch(family, target, settings, entry))
        except BaseException:  # a half patched model never remains
            for target, old in zip(targets, before, strict=True):
                _swap(target, old)
            raise
        patches: list[Patch] = [getattr(target, PATCH) for target in targets]
        written = [pair for old in before if old is not None for pair in old.written]
        known = [changed for changed, _ in written]
        new = config.write_entry(model, targets, entry)
        written += [pair for pair in new if all(pair[0] is not x for x in known)]
        patches[0].written = written
    return PatchHandle(patches)


@contextmanager
def keeping_patches(model: nn.Module) -> Iterator[None]:
    """Give a model, at the end of a block, the patches that it has at its begin."""
    before = [vars(part)[PATCH] for part in model.modules() if PATCH in vars(part)]
    try:
        yield
    finally:
        with _lock:
            for patch in before:
                if not patch.in_force:
                    _swap(patch.model, patch)
                    config.write_again(patch.written, patch.entry)


def handles(targets: list[Any]) -> list[PatchHandle]:
    """Return a handle for each patch of the targets."""
    found: dict[int, list[Patch]] = {}
    for target in targets:
        if (patch := getattr(target, PATCH, None)) is not None:
            found.setdefault(id(patch.settings), []).append(patch)
    return [PatchHandle(patches) for patches in found.values()]


def _patch_plainly(family: Family, target: nn.Module) -> None:
    """Patch a model without scaling, to compare it with itself."""
    _swap(target, Patch(family, target, Settings(None)))


def _swap(model: Any, new: Patch | None) -> None:
    """Put a patch, or none, in force in place of the patch that a model has, if it has one."""
    old: Patch | None = getattr(model, PATCH, None)
    if old is new:
        return
    same = old is not None and new is not None and old.family is new.family
    if old is not None:
        _take_back(old)
        if not same:
            old.family.rebuild(model, old.released)
    if new is not None:
        new.released = old.released if same and old else new.family.release(model)
        new.key = graph_operator.key_for(new, old.key if old else None)
        _install(new)


def _install(patch: Patch) -> None:
    """Replace the methods of a model and its layers; shared layers may have theirs already."""
    model = patch.model
    setattr(model, PATCH, patch)
    own_bias.hold_modules(model, patch.settings.bias)
    for layer in patch.attends:
        if OWNERS not in vars(layer):
            *_, ours, _ = override(layer, "forward", layer_forward)
            ours.__signature__ = signature_without_types(layer)
    _own(patch)
    for replacement in _replacements(patch):
        patch.replaced.append(override(*replacement))
    *_, ours, own = override(model, "forward", model_forward)
    patch.replaced.append((model, "forward", ours, own))
    ours.__signature__ = signature_without_types(model)
    if patch.family.model_forward is not None:
        patch.own_forward = partial(patch.family.model_forward, model)
    elif own and own[0] != type(model).forward.__get__(model):
        patch.own_forward = own[0]


def _replacements(patch: Patch) -> list[Replacement]:
    """Return what is replaced in a patched model beside its forward and the layers' forward."""
    model: Any = patch.model
    found = list(patch.family.replacements(model))
    found.append((model, "_replicate_for_data_parallel", _refuse_replicas))
    if not patch.traceable:
        return [*found, (model, "__prepare_scriptable__", refuse_script)]
    from ntk_alibi.integrations.forms.traceable import BIAS, LayerBias

    for layer in patch.attends:
        if hasattr(layer, BIAS):
            raise ValueError(
                "model must have attention layers of its own with attention='traceable', got a "
                f"{type(layer).__name__} of another patched model"
            )
        found.append((layer, BIAS, LayerBias(patch.rule, patch.settings, layer)))
    return found


def _own(patch: Patch) -> None:
    """Let the layers of a patch belong to it."""
    for layer, attend in patch.attends.items():
        owners = vars(layer).setdefault(OWNERS, Owners((attend.number, attend.crosses)))
        owners.attends[patch.key] = weakref.ref(attend)


def _take_back(patch: Patch) -> None:
    """Undo `_install`, as far as it came."""
    for replacement in reversed(patch.replaced):
        restore(*replacement)
    patch.replaced, patch.own_forward = [], None
    for layer in patch.attends:
        if OWNERS not in vars(layer):
            continue
        owners = vars(layer)[OWNERS]
        owners.attends.pop(patch.key, None)
        if not owners.living():
            del vars(layer)[OWNERS]
            for value in list(vars(layer).values()):
                if isinstance(value, partial) and value.func is layer_forward:
                    restore(layer, "forward", value, ())
    own_bias.hold_modules(patch.model, None)
    delattr(patch.model, PATCH)


def _refuse_replicas(_: nn.Module) -> NoReturn:
    """Replace _replicate_for_data_parallel: replicas would compute with the original's weights."""
    raise ValueError(
        "model must not be patched in torch.nn.DataParallel, whose replicas would compute with the "
        "weights of the first one: use torch.nn.parallel.DistributedDataParallel, or patch none"
    )
