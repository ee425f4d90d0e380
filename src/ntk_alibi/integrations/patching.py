"""Patches of live models: put in force, taken back."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

from torch import nn

from ntk_alibi._torch_state import is_tracing, refuse_script
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations import config, graph_operator, numeric_check, own_bias, version_check
from ntk_alibi.integrations.arguments import positional_names
from ntk_alibi.integrations.attend import Attend
from ntk_alibi.integrations.classes import PATCH, PLACE, Place, put, take_back
from ntk_alibi.integrations.family import Family
from ntk_alibi.integrations.forwards import layer_forward, model_forward
from ntk_alibi.integrations.overriding import Restored, override, restore
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.tables import LayerTable
from ntk_alibi.integrations.tokens import MaskMemory, untraced
from ntk_alibi.integrations.transformers_versions import version_is_tested
from ntk_alibi.methods import ENTRY, read_entry

_lock = threading.RLock()
_serials = itertools.count()


@dataclass(eq=False)
class Patch:
    """The patch of one model, which the model keeps; a copy of the model has one of its own.

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
        numbered: the `Attend` of each attention layer, by its number and whether it attends to
            other states.
        ended: whether it was taken back, so that the end of a block does not give it back.
        has_run: whether the model has run with it, where its layers get masks.
        memory: what layers share of the masks that they get.
        positional: the arguments that the model's forward takes by position, too.
        parts: modules besides the model to which the patch has given a class.
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
    numbered: dict[tuple[int, bool], Attend] = field(init=False)
    ended: bool = field(init=False, default=False)
    has_run: bool = field(init=False, default=False)
    memory: MaskMemory = field(init=False, default_factory=MaskMemory)
    positional: tuple[str, ...] = field(init=False)
    parts: set[nn.Module] = field(init=False, default_factory=set)
    replaced: list[Restored] = field(init=False, default_factory=list)
    written: config.Written = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        family, model = self.family, self.model
        self.serial = next(_serials)
        self.rule, self.causal = family.rule(model), family.is_causal(model)
        self.positional, self.traceable = positional_names(model), self.settings.traceable
        self.numbered = {}
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
                self.numbered[number, crosses] = self.own(layer) or attend

    def own(self, layer: nn.Module) -> Attend | None:
        """Return the `Attend` of one of the layers that the model had at the patch, or None."""
        place = getattr(layer, PLACE, None)
        known = None if place is None else self.numbered.get(place.key)
        if known is not None and known.layer is layer:
            return known
        return next((x for x in self.numbered.values() if x.layer is layer), None)

    def attend_of(self, layer: nn.Module) -> Attend | None:
        """Return the `Attend` of a layer that got this patch's tokens; None if it has no place.

        The layer may be a copy, whose place is the one of its original.
        """
        place = getattr(layer, PLACE)
        if not is_tracing() and (known := self.own(layer)) is not None:
            setattr(layer, PLACE, Place(place.key, known))
            return known
        known = self.numbered.get(place.key)
        return None if known is None else replace(known, layer=layer)

    @untraced
    def adopt(self, model: nn.Module) -> Patch:
        """Return the own patch of a shallow copy of the model, which has this one yet."""
        with _lock:
            held: Patch = getattr(model, PATCH)
            if held.model is model:
                return held
            adopted = Patch(self.family, model, self.settings, self.entry, self.released)
            own = dict(model.named_modules())
            same = {part: own[name] for name, part in self.model.named_modules() if name in own}
            adopted.parts = {same[part] for part in self.parts if part in same}
            for part, name, _, before in self.replaced:
                if part in same:
                    value = getattr(same[part], name)
                    adopted.replaced.append((same[part], name, value, before))
            adopted.key = graph_operator.key_for(adopted)
            setattr(model, PATCH, adopted)
            return adopted

    @property
    def hands_over(self) -> bool:
        """Whether the layers get `Tokens`, not masks."""
        family = self.family
        return family.code is not None and not (self.traceable or family.makes_masks(self.model))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the layers of a copied model belong to the copy's patch."""
        vars(self).update(state)
        self.serial, self.key = next(_serials), graph_operator.key_for(self)

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
        with _lock:
            for patch in self._patches:
                patch.ended = True
                if patch.in_force:
                    configs = config.configs_of(self._model, [patch.model])
                    written = config.write_entry(configs, patch.entry, patch.written)
                    _swap(patch.model, None)
                    shared = _written_by_others([x for x, _ in written], [patch.model])
                    config.restore_entries(
                        [x for x in written if all(x[0] is not y for _, (y, _) in shared)]
                    )

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
        with _lock:
            if self._state != "in force":
                return
            self.undo()
            for patch in self._replaced:
                if not patch.ended:
                    _swap(patch.model, patch)
                    config.write_entry([x for x, _ in patch.written], patch.entry, patch.written)

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
        configs = config.configs_of(model, targets)
        _check_own_configs(configs, targets, entry)
        before = [patch_of(target) for target in targets]
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
        earlier = [pair for old in before if old is not None for pair in old.written]
        earlier += [pair for _, pair in _written_by_others(configs, targets)]
        written = config.write_entry(configs, entry, earlier)
        for patch in patches:
            patch.written = written
    return PatchHandle(patches, model, [patch for patch in before if patch is not None])


def _written_by_others(configs: list[Any], targets: list[Any]) -> list[tuple[Patch, Any]]:
    """Return patches of other models in the same configuration objects, and what they wrote."""

    def found() -> list[tuple[Patch, Any]]:
        others = [x for x in graph_operator.in_force() if all(x.model is not y for y in targets)]
        pairs = [(patch, pair) for patch in others for pair in patch.written]
        return [(patch, pair) for patch, pair in pairs if any(pair[0] is x for x in configs)]

    if not found():
        return []
    gc.collect()  # a model that is gone, but not collected yet, is no other
    return found()


def _check_own_configs(configs: list[Any], targets: list[Any], entry: Any) -> None:
    """Refuse a configuration object of another patched model, whose patch is saved in it."""
    if any(patch.entry != entry for patch, _ in _written_by_others(configs, targets)):
        raise ValueError(
            "model must have a configuration of its own, in which its patch is saved, got one "
            "object for two models with different patches: build each model of "
            "copy.deepcopy(config)"
        )


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
    _swap(target, Patch(family, target, Settings(None)))


def patch_of(model: Any) -> Patch | None:
    """Return the patch that a model has, or None."""
    patch: Patch | None = getattr(model, PATCH, None)
    return patch if patch is None or patch.model is model else patch.adopt(model)


def _swap(model: Any, new: Patch | None) -> None:
    """Put a patch, or none, in force in place of the patch that a model has, if it has one."""
    old = patch_of(model)
    if old is new:
        return
    same = old is not None and new is not None and old.family is new.family
    if old is not None:
        _take_marks(old)
        if not same:
            _take_classes(old)
            old.family.rebuild(model, old.released)
    if new is not None:
        new.released = old.released if same and old else new.family.release(model)
        new.key = graph_operator.key_for(new, old.key if old else None)
        _install(new)
        if same and old:
            _take_classes(old)


def _install(patch: Patch) -> None:
    """Give a model, its layers and other parts their classes, and other values of its parts."""
    model = patch.model
    setattr(model, PATCH, patch)
    own_bias.hold_modules(model, patch.settings.bias)
    methods: dict[nn.Module, dict[str, Any]] = {model: {"forward": model_forward, **_REFUSED}}
    if patch.traceable:
        del methods[model]["__prepare_scriptable__"]
    values = _layer_biases(patch) if patch.traceable else []
    for owner, name, value in patch.family.replacements(model):
        if callable(value) and not isinstance(value, nn.Module):
            methods.setdefault(owner, {})[name] = value
        else:
            values.append((owner, name, value))
    shared = _parts_of_others(patch)
    places: dict[nn.Module, Any] = {attend.layer: x for x, attend in patch.numbered.items()}
    methods.update({layer: {"forward": layer_forward} for layer in places})
    for owner, own in methods.items():
        put(owner, own)
        if owner is not model:
            patch.parts.add(owner)
            if owner not in shared:  # a layer has the place that the first patch gave it
                place = places.get(owner)
                setattr(owner, PLACE, place and Place(place, patch.numbered[place]))
    for value in values:
        patch.replaced.append(override(*value))


def _layer_biases(patch: Patch) -> list[tuple[nn.Module, str, Any]]:
    """Return the owner, attribute and module of each layer's bias in a traceable patch."""
    from ntk_alibi.integrations.forms.traceable import BIAS, LayerBias

    layers = {attend.layer for attend in patch.numbered.values()}
    for layer in layers:
        if hasattr(layer, BIAS):
            raise ValueError(
                "model must have attention layers of its own with attention='traceable', got a "
                f"{type(layer).__name__} of another patched model"
            )
    return [(layer, BIAS, LayerBias(patch.rule, patch.settings, layer)) for layer in layers]


def _take_marks(patch: Patch) -> None:
    """Take a patch out of force, as far as it came; the classes that it gave are then stock."""
    for value in reversed(patch.replaced):
        restore(*value)
    patch.replaced = []
    own_bias.hold_modules(patch.model, None)
    delattr(patch.model, PATCH)
    shared = _parts_of_others(patch)
    for part in {*patch.model.modules(), *patch.parts}:  # copies of layers, too
        if PLACE in vars(part) and part not in shared:
            delattr(part, PLACE)


def _take_classes(patch: Patch) -> None:
    """Give the model and the parts of a patch their own classes where no patch has marked them."""
    for part in {*patch.model.modules(), *patch.parts}:
        if PLACE not in vars(part) and PATCH not in vars(part):
            take_back(part)


def _parts_of_others(patch: Patch) -> set[nn.Module]:
    """Return the parts of all other patches in force, whose models may share some."""
    others = [x.parts for x in graph_operator.in_force() if x is not patch]
    return set().union(*others)


def _refuse_replicas(_: nn.Module) -> NoReturn:
    """Replace _replicate_for_data_parallel: replicas would compute with the original's weights."""
    raise ValueError(
        "model must not be patched in torch.nn.DataParallel, whose replicas would compute with the "
        "weights of the first one: use torch.nn.parallel.DistributedDataParallel, or patch none"
    )


#: Methods by which torch would copy or script a patched model.
_REFUSED = {
    "_replicate_for_data_parallel": _refuse_replicas,
    "__prepare_scriptable__": refuse_script,
}
