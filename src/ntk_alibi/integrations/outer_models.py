"""A hook on the patched model and the models around it, which reads the arguments of their calls.

BLOOM and MPT drop arguments that describe packed segments before their inner model could read them.
The hook passes on what it read in place of the attention_mask, which no model drops.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from ntk_alibi._torch_state import has_values, is_tracing
from ntk_alibi.integrations.arguments import (
    cache_of,
    check_cache_in_use,
    inputs_of,
    paged_cache_of,
    positional_names,
)
from ntk_alibi.integrations.packed_segments import PackedSegments, describing, segments_of_rows
from ntk_alibi.integrations.passes.mask_values import check_inputs, check_shape, shown
from ntk_alibi.integrations.settings import PATCHED
from ntk_alibi.integrations.tokens import Tokens, untraced
from ntk_alibi.masks import checked_positions

#: The attribute of a patched model that keeps the models with the hook, each with its handle, in a
#: tuple, so that they are no parts.
_KEPT = "_ntk_alibi_outer_models"


def models_that_hold(target: nn.Module, modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return those modules that are models of transformers or PEFT, and hold a module or are it."""
    models = [x for x in modules if is_model(x)]
    return [x for x in models if any(part is target for part in x.modules())]


def all_modules() -> list[nn.Module]:
    """Return the modules of this process, in less than 0.1 s: no module knows what holds it."""
    modules = [x for x in gc.get_objects() if issubclass(type(x), nn.Module)]
    return [x for x in modules if "_modules" in vars(x)]


def is_model(module: nn.Module) -> bool:
    """Return whether a module is a model of transformers, or one that PEFT puts around it."""
    for base in type(module).__mro__:
        library = base.__module__.partition(".")[0]
        if library == "peft" or (base.__name__ == "PreTrainedModel" and library == "transformers"):
            return True
    return False


def keep(models: Iterable[nn.Module], target: nn.Module) -> None:
    """Register the hook on models of transformers and PEFT, from the outermost down to the target.

    Modules of other libraries pass on what they choose to.
    """
    kept = getattr(target, _KEPT, ())
    for model in models:
        if all(x is not model for x, _ in kept):
            read = functools.partial(_read, positional_names(model), target)
            handle = model.register_forward_pre_hook(read, prepend=True, with_kwargs=True)
            kept = (*kept, (model, handle))
    setattr(target, _KEPT, kept)
    _keep_later_ones()


@functools.cache
def _keep_later_ones() -> None:
    """Register the hook on models that get a patched model as a part later, too."""
    register_module_module_registration_hook(_keep_owner)


def _keep_owner(owner: nn.Module, _: str, part: nn.Module | None) -> None:
    if part is None or not is_model(owner):
        return
    for target in part.modules():
        if _KEPT in vars(target):
            keep([owner], target)


def give_back(target: nn.Module) -> None:
    """Undo `keep`."""
    for _, handle in vars(target).pop(_KEPT, ()):
        handle.remove()


def _read(
    names: tuple[str, ...],
    target: nn.Module,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Replace the attention_mask of a call by what the other arguments say of packed segments."""
    # Dynamo of torch 2.9 takes strict=False for True.
    given = {**dict(zip(names, args)), **kwargs} if args else kwargs  # noqa: B905
    rest, said, settings = args[len(names) :], describing(given), getattr(target, PATCHED).stack[-1]
    if isinstance(given.get("attention_mask"), Tokens):
        return None
    # Layers of this form get masks of all pairs. No configuration asks for it.
    traceable = settings is not None and settings.traceable
    of_pairs = getattr(given.get("attention_mask"), "ndim", 2) == 4
    of_pairs = of_pairs and paged_cache_of(given) is None  # whose masks say what its indices say
    passed = dict(given)
    if model is target or of_pairs:
        check_inputs(given)
        if traceable and model is target and not is_tracing():
            _check_columns(given, target)
        passed["attention_mask"] = _mask_to_pass_on(given, target, traceable)
    if traceable and is_tracing():
        _check_traced(said, names, model)
        return rest, passed
    if given.get("use_cache") is False:
        check_cache_in_use(given)
    segments = _segments(model, given, traceable) if said and not of_pairs else None
    if segments is None:
        return rest, passed
    if segments.cache is not None:
        del passed["cache"]  # which models of transformers 5.24 would ask for its length
    # A cache of the model would not know the segments.
    return rest, {**passed, "attention_mask": Tokens(segments=segments), "use_cache": False}


def _mask_to_pass_on(given: Mapping[str, Any], target: nn.Module, traceable: bool) -> Any:
    """Return the mask with which a patched model goes on.

    Without one, tokens save BLOOM a bias of its own, and Falcon a search for segments in positions,
    whose values no trace has. The layers of a traceable form may take booleans for hidden keys.
    """
    mask = given.get("attention_mask")
    if not traceable and (mask is None or mask.ndim == 4):
        given_positions = mask is not None and given.get("position_ids") is not None
        return Tokens(mask, positions=_positions(given) if given_positions else None)
    hidden = getattr(target, PATCHED).family.masks_hidden
    if not traceable or mask is None or mask.ndim != 4 or not hidden:
        return mask
    if mask.dtype != torch.bool and not has_values(mask):
        return mask
    zeros = torch.zeros(mask.shape, device=mask.device)
    return zeros.masked_fill(~shown(mask, "attention_mask"), torch.finfo(torch.float32).min)


def _check_columns(given: Mapping[str, Any], target: nn.Module) -> None:
    """Check the mask of a form whose layers get masks that transformers made of it."""
    mask, inputs, cache = given.get("attention_mask"), inputs_of(given), cache_of(given)
    if mask is None or inputs is None:
        return
    (rows, tokens), past, capacity = inputs.shape[:2], 0, 0
    if cache is not None:
        past, capacity = int(cache.get_seq_length()), int(cache.get_mask_sizes(tokens, 0)[0])
    heads = getattr(target, PATCHED).family.rule(target).heads
    check_shape(mask, "attention_mask", (rows, heads, tokens, past + tokens), capacity)


@untraced
def _positions(given: Mapping[str, Any]) -> Any:
    """Return the position_ids beside a mask of four dimensions, (1 or rows, tokens)."""
    value, inputs = given["position_ids"], inputs_of(given)
    on_cpu = value.is_cpu if isinstance(value, torch.Tensor) else True
    if on_cpu and inputs is not None:  # on devices nothing is read
        value = checked_positions("position_ids", value, *inputs.shape[:2])
    return torch.atleast_2d(torch.as_tensor(value))


def _check_traced(said: list[str], names: tuple[str, ...], model: nn.Module) -> None:
    """Refuse what a graph could not check, but the position_ids that generate() gives."""
    for name in said:
        if name not in names:
            raise ValueError(
                f"{name} must be None where torch traces a patched {type(model).__name__}, which "
                "reads each row as one text, got a value that a graph cannot check"
            )


@untraced
def _segments(model: nn.Module, given: Mapping[str, Any], traceable: bool) -> PackedSegments | None:
    """Return the packed segments of rows, or None if each is one text."""
    why_one = "attention='traceable'" if traceable else ""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        why_one = "a learned prompt"
    return segments_of_rows(type(model).__name__, given, why_one)
