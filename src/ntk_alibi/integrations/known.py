"""The families that a patch knows: of transformers, of remote code, and registered ones."""

from __future__ import annotations

from torch import nn

from ntk_alibi.integrations.families import baichuan, bert, bloom, falcon, mpnet, mpt, t5
from ntk_alibi.integrations.family import BY_NAME, Family, check_family
from ntk_alibi.integrations.settings import PATCHED

#: Families of transformers' classes, by the names of the models that hold their layers.
OF_TRANSFORMERS = {
    family.code.model: family
    for family in (bloom.FAMILY, mpt.FAMILY, falcon.FAMILY, *t5.FAMILIES, mpnet.FAMILY)
    if family.code is not None
}

#: Families of transformers' decoders with slopes.
DECODERS = [family for family in OF_TRANSFORMERS.values() if family.decoder]

#: Families of remote code.
OF_REMOTE_CODE = (bert.JINA, bert.MOSAIC, baichuan.FAMILY)

BY_NAME.update({family.name: family for family in (*OF_TRANSFORMERS.values(), *OF_REMOTE_CODE)})

#: Families that others registered.
_registered: list[Family] = []


def register(family: Family) -> None:
    """Let `patch` find the models of a family.

    Args:
        family: the family; it is asked before those that were known.

    Raises:
        TypeError: family is no `Family`.
        ValueError: its name is taken.

    Example:
        >>> from ntk_alibi.integrations import Family, register
        >>> register(
        ...     Family(
        ...         name="Tiny",
        ...         matches=lambda module: type(module).__name__ == "TinyDecoder",
        ...         layers=lambda model: list(model.layers),
        ...         forward=lambda attend, layer, hidden: layer.mix(hidden, attend),
        ...         slopes=lambda model: model.heads,
        ...     )
        ... )
    """
    name = check_family(family).name
    if name.lower() in map(str.lower, BY_NAME):
        raise ValueError(f"name of a family must be one that is not taken, got {name!r}")
    BY_NAME[name] = family
    _registered.append(family)


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
        if PATCHED in vars(part):
            patched: Family = vars(part)[PATCHED].family
            return patched
    for family in reversed(_registered):
        if family.find(model):
            return family
    for part in model.modules():
        for base in type(part).__mro__:
            known = OF_TRANSFORMERS.get(base.__name__)
            if known is not None and base.__module__.startswith("transformers.models."):
                return known
    for family in OF_REMOTE_CODE:
        if family.find(model):
            return family
    return None
