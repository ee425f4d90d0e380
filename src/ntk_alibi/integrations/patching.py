"""Apply patches to live models, and undo them."""

from __future__ import annotations

import threading
import warnings
from functools import partial
from typing import Any, NoReturn

from torch import nn

from ntk_alibi._torch_state import refuse_script
from ntk_alibi.integrations import numeric_check, outer_models, own_bias, version_check
from ntk_alibi.integrations.attend import Attend
from ntk_alibi.integrations.family import Family, Replacement
from ntk_alibi.integrations.overriding import override, restore
from ntk_alibi.integrations.settings import (
    PATCHED,
    Patched,
    Settings,
    form_of,
    of_config,
    own_config,
    patched_config,
    refuse_traceable,
    stack_of,
    warn_of_another_train_length,
    write_plainly,
)
from ntk_alibi.integrations.tables import LayerTable
from ntk_alibi.integrations.tokens import NAME, MaskMemory
from ntk_alibi.integrations.transformers_versions import version_is_tested

#: The patches of a model that is compared with itself: one, without scaling.
PLAIN = (Settings(None),)

_lock = threading.RLock()


class PatchHandle:
    """A patch in force, until `undo` or the end of its `with` block.

    The block ends the patch for good: for another one call `patch` again.

    Attributes:
        scaling: the patch's scaling, or None.
        bias: its bias in place of ALiBi: an object, a module, a dict of layers, or None.
        attention: its attention.
        log_n: its factor of scores, a `LogN`, or None.
    """

    def __init__(self, family: Family, targets: list[nn.Module], settings: Settings) -> None:
        self._family = family
        self._targets = targets
        self._settings = settings
        self._entered = False
        self.scaling = settings.scaling
        self.bias = settings.bias
        self.attention = settings.attention
        self.log_n = settings.log_n

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
                    _uninstall(target)
            self._targets = []

    def __enter__(self) -> PatchHandle:
        """Begin the block at whose end this patch is undone.

        Raises:
            ValueError: the patch was undone, or has such a block already.
        """
        undone = self._state() == "undone"
        if undone or self._entered:
            state = "that was undone" if undone else "inside a block of its own"
            raise ValueError(
                f"patch must be in force and have one with block, got one {state}: call "
                "na.patch(model, ...) again"
            )
        self._entered = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        choices = repr(self._settings)
        if self.scaling is None and self.bias is None:
            choices = choices.replace("None", self._family.own_bias, 1)
        return f"<patch of {self._family.name}, {choices}, {self._state()}>"

    def _state(self) -> str:
        """Return whether the patch is in force, and how many others the model has."""
        for stack in map(stack_of, self._targets):
            for place, settings in enumerate(stack):
                if settings is self._settings:
                    newer, older = len(stack) - place - 1, place - (None in stack)
                    if newer:
                        return f"under {newer} newer {'patch' if newer == 1 else 'patches'}"
                    others = f", over {older} other {'patch' if older == 1 else 'patches'}"
                    return f"in force{others if older else ''}"
        return "undone"


def apply(
    model: nn.Module, family: Family, targets: list[nn.Module], settings: Settings
) -> PatchHandle:
    """Check all targets in a model, then patch them."""
    for target in targets:
        family.check_fit(target, settings)
        _check_version(family, target)
        if None in stack_of(target):
            refuse_traceable(settings.attention)
    warn_of_another_train_length(settings.scaling, family.stated_length(targets[0]))
    if all(stack_of(target)[-1:] == (settings,) for target in targets):
        warnings.warn(
            "model is patched by the same call already, and this patch nests in that one: its "
            "undo() leaves the other in force, while na.unpatch(model) takes all back",
            stacklevel=4,
        )
    with _lock:
        before = [stack_of(target) for target in targets]
        try:
            for target, stack in zip(targets, before, strict=True):
                if not stack and family.code is None:
                    numeric_check.compare(family, target, partial(_stack, family, stack=PLAIN))
                alone = model is target and family.decoder and not stack
                modules = outer_models.all_modules() if alone else model.modules()
                around = outer_models.models_that_hold(target, modules)
                _stack(family, target, (*stack, settings))
                if family.decoder:
                    outer_models.keep(around, target)
                if around:
                    from ntk_alibi.integrations import saving

                    saving.register()
        except BaseException:  # a half patched model never remains
            for target, stack in zip(targets, before, strict=True):
                if stack:
                    _stack(family, target, stack)
                elif stack_of(target):
                    _uninstall(target)
            raise
    return PatchHandle(family, targets, settings)


def follow_config(family: Family, target: nn.Module) -> None:
    """Patch a new model permanently; its configuration is read at each call."""
    config: Any = target.config
    write_plainly(config)
    settings = of_config(config)
    family.check_fit(target, settings)
    _check_version(family, target)
    warn_of_another_train_length(settings.scaling, family.stated_length(target))
    _stack(family, target, (None,))
    if family.decoder:
        outer_models.keep([target], target)


def _check_version(family: Family, target: nn.Module) -> None:
    """Compare a small model with itself, patched, for a version of transformers not tested."""
    if family.code is not None and not version_is_tested():
        version_check.check(family, target, partial(_stack, family, stack=PLAIN))


def handles(family: Family, targets: list[nn.Module]) -> list[PatchHandle]:
    """Return a handle for each patch of the targets, in the order in which they were applied."""
    patches: dict[int, Settings] = {}
    for target in targets:
        patches |= {id(settings): settings for settings in stack_of(target) if settings is not None}
    return [
        PatchHandle(family, [x for x in targets if any(y is z for z in stack_of(x))], y)
        for y in patches.values()
    ]


def _stack(family: Family, target: nn.Module, stack: tuple[Settings | None, ...]) -> None:
    """Store the settings of nested patches, of which the last is in force."""
    settings = stack[-1] or Settings(None)
    if settings.bias is not None or own_bias.NAME in dict(target.named_children()):
        own_bias.register(target, settings.bias)
    patched: Patched = vars(target).setdefault(PATCHED, Patched(family))
    patched.family, patched.stack = family, stack
    form = form_of(target)
    if patched.form and (patched.form != form or settings.traceable):
        _take_back(target, patched)
    if not patched.form:
        _install(target, patched, settings, form)


def _install(target: Any, patched: Patched, settings: Settings, form: str) -> None:
    """Replace the methods of a stock model, and let transformers give it the tokens of a pass."""
    family = patched.family
    patched.released = family.release(target)
    replacements = _replacements(family, target, settings)
    takes_tokens = family.code is not None and not settings.traceable
    if takes_tokens and target.config._attn_implementation != NAME:
        target.config = patched_config(target.config)
    patched.form = form
    for replacement in replacements:
        patched.replaced.append(override(*replacement))


def _replacements(family: Family, target: nn.Module, settings: Settings) -> list[Replacement]:
    """Return what is replaced in a patched model, its layers' forward included."""
    attend_class = Attend
    if settings.traceable:
        from ntk_alibi.integrations.forms.traceable import BIAS, LayerBias, TraceableAttend

        attend_class = TraceableAttend
    rule, causal = family.rule(target), family.is_causal(target)
    tables = None if family.tables is None else family.tables(target)
    replacements = list(family.replacements(target))
    replacements.append((target, "_replicate_for_data_parallel", _refuse_replicas))
    if not settings.traceable:
        replacements.append((target, "__prepare_scriptable__", refuse_script))
    for layers, crosses in ((family.layers(target), False), (family.crossing(target), True)):
        memory = MaskMemory()
        for i, layer in enumerate(layers):
            table = None
            if tables is not None and not crosses:
                table = LayerTable(tables[i], first=tables[i] not in tables[:i])
            ends, sees_back = i == len(layers) - 1, causal and not crosses
            attend = attend_class(
                target, family, layer, i, rule, sees_back, crosses, table, memory, ends=ends
            )
            replacements.append((layer, "forward", partial(family.forward, attend)))
            if settings.traceable:
                replacements.append((layer, BIAS, LayerBias(rule, settings, layer)))
    return replacements


def _refuse_replicas(_: nn.Module) -> NoReturn:
    """Replace _replicate_for_data_parallel: replicas would compute with the original's weights."""
    raise ValueError(
        "model must not be patched in torch.nn.DataParallel, whose replicas would compute with the "
        "weights of the first one: use torch.nn.parallel.DistributedDataParallel, or patch none"
    )


def _take_back(target: Any, patched: Patched) -> None:
    """Undo `_install`."""
    for replacement in patched.replaced:
        restore(*replacement)
    patched.form, patched.replaced = "", []
    if patched.family.code is not None:
        target.config = own_config(target.config)
    patched.family.rebuild(target, patched.released)


def _uninstall(target: nn.Module) -> None:
    outer_models.give_back(target)
    patched = vars(target).pop(PATCHED)
    own_bias.register(target, None)
    if patched.form:
        _take_back(target, patched)
