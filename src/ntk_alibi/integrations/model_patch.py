"""The patch of one model: what it keeps, how it is put in force and taken back."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any, NoReturn

from torch import nn

from ntk_alibi._torch_state import is_tracing, refuse_script
from ntk_alibi.integrations import biases, graph_operator
from ntk_alibi.integrations.arguments import positional_names
from ntk_alibi.integrations.attend import Attend
from ntk_alibi.integrations.classes import PATCH, PLACE, Place, put, take_back
from ntk_alibi.integrations.entry import Written
from ntk_alibi.integrations.family import Family
from ntk_alibi.integrations.forwards import layer_forward, model_forward
from ntk_alibi.integrations.overriding import Restored, override, restore
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.tokens import MaskMemory, untraced

#: Held while patches change.
LOCK = threading.RLock()
_serials = itertools.count()


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
        written: the argument of `entry.restore_entries`.
    """

    def __init__(
        self,
        family: Family,
        model: Any,
        settings: Settings,
        entry: dict[str, Any] | None = None,
        released: Any = None,
    ) -> None:
        self.family, self.model, self.settings = family, model, settings
        self.entry, self.released = entry, released
        self.key, self.serial = -1, next(_serials)
        self.rule, self.causal = family.rule(model), family.is_causal(model)
        self.traceable, self.positional = settings.traceable, positional_names(model)
        self.ended = self.has_run = False
        self.memory = MaskMemory()
        self.parts: set[nn.Module] = set()
        self.replaced: list[Restored] = []
        self.written: Written = []
        self.numbered: dict[tuple[int, bool], Attend] = {}
        attend_class: Any = Attend
        if self.traceable:
            from ntk_alibi.integrations.traceable import TraceableAttend

            attend_class = TraceableAttend
        tables = None if family.tables is None else family.tables(model)
        for layers, crosses in ((family.layers(model), False), (family.crossing(model), True)):
            for number, layer in enumerate(layers):
                table, reads = None, False
                if tables is not None and not crosses:
                    table = tables[number]
                    reads = all(table is not x for x in tables[:number])
                causal, ends = self.causal and not crosses, layer is layers[-1]
                attend = attend_class(self, layer, number, causal, crosses, table, reads, ends)
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
        with LOCK:
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


def patch_of(model: Any) -> Patch | None:
    """Return the patch that a model has, or None."""
    patch: Patch | None = getattr(model, PATCH, None)
    return patch if patch is None or patch.model is model else patch.adopt(model)


def swap(model: Any, new: Patch | None) -> None:
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
    biases.hold_modules(model, patch.settings.bias)
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
    from ntk_alibi.integrations.traceable import BIAS, LayerBias

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
    biases.hold_modules(patch.model, None)
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
