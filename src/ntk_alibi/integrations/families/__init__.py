"""The model families that can be patched, a module each, which registers its own."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

from torch import nn

from ntk_alibi.integrations.classes import PATCH
from ntk_alibi.integrations.family import REGISTERED, Family, check_family

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def transformers_families() -> list[Family]:
    """Return the families of transformers' own classes."""
    return [family for family in REGISTERED.values() if family.code is not None]


def listed(families: Iterable[Family]) -> str:
    """Return the names of families for a message, in alphabetical order."""
    return ", ".join(sorted((family.name for family in families), key=str.casefold))


def found(model: nn.Module, given: Family | None = None) -> tuple[Family | None, list[nn.Module]]:
    """Return the family whose attention a model holds, or the given one, and modules to patch.

    Raises:
        TypeError: model is no torch module, or the given family is none.
    """
    if not isinstance(model, nn.Module):
        got, advice = type(model).__name__, ""
        if isinstance(model, str):
            advice = ": load it by transformers.AutoModelForCausalLM.from_pretrained(...)"
        elif isinstance(model, type):
            got, advice = f"the class {model.__name__}", ": pass a model, an instance of it"
        elif callable(getattr(model, "undo", None)):
            advice = ": call its undo()"
        elif isinstance(getattr(model, "model", None), nn.Module):
            advice = ": pass its .model"
        elif isinstance(model, tuple) and model and isinstance(model[0], nn.Module):
            advice = ": pass its first item"
        raise TypeError(f"model must be a torch.nn.Module, got {got}{advice}")
    if given is not None:
        return given, check_family(given).find(model)
    family = _family_in(model)
    return family, [] if family is None else family.find(model)


def _family_in(model: nn.Module) -> Family | None:
    """Return the family with which a part of a module is patched, or to which a part belongs."""
    for part in model.modules():
        if PATCH in vars(part):
            family: Family = vars(part)[PATCH].family
            return family
    for part in model.modules():
        names = {base.__name__ for base in type(part).__mro__}
        for family in reversed(REGISTERED.values()):
            if (family.code is None or family.code.model in names) and family.matches(part):
                return family
    return None
