"""The families that a patch knows: those of transformers, of remote code, and registered ones.

Families of transformers import their modules, and wait until their version is known to be there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from torch import nn

from ntk_alibi.integrations.families import baichuan, bert
from ntk_alibi.integrations.family import Family, check_family
from ntk_alibi.integrations.settings import family_of
from ntk_alibi.integrations.transformers_versions import check_version, version_is_known

if TYPE_CHECKING:
    from ntk_alibi.integrations.bucket_family import BucketFamily
    from ntk_alibi.integrations.transformers_family import TransformersFamily

#: The families of `of_transformers`, by the classes of their models.
OF_TRANSFORMERS = {"BloomModel": "BLOOM", "MptModel": "MPT", "FalconModel": "Falcon"}

#: The families of `of_buckets`.
OF_BUCKETS = {
    "T5Stack": "T5",
    "MT5Stack": "mT5",
    "UMT5Stack": "UMT5",
    "SwitchTransformersStack": "SwitchTransformers",
    "Pop2PianoStack": "Pop2Piano",
    "Pix2StructTextModel": "Pix2Struct",
    "MPNetModel": "MPNet",
}

#: Families of remote code, which import torch alone.
OF_REMOTE_CODE: tuple[Family, ...] = (bert.JINA, bert.MOSAIC, baichuan.FAMILY)

#: Families that others registered, by name.
_registered: dict[str, Family] = {}


@functools.cache
def of_transformers() -> tuple[TransformersFamily, ...]:
    """Return the families of transformers' classes; none with a version that is not known."""
    if not version_is_known():
        return ()
    from ntk_alibi.integrations.families import bloom, falcon, mpt

    return bloom.FAMILY, mpt.FAMILY, falcon.FAMILY


@functools.cache
def of_buckets() -> tuple[BucketFamily, ...]:
    """Return the families of transformers' classes without slopes, as `of_transformers` does."""
    if not version_is_known():
        return ()
    from ntk_alibi.integrations.families import mpnet, t5

    return *t5.FAMILIES, mpnet.FAMILY


def families() -> tuple[Family, ...]:
    """Return all families, in the order in which they are asked."""
    return *reversed(_registered.values()), *OF_REMOTE_CODE, *of_transformers(), *of_buckets()


def names() -> list[str]:
    """Return the names of all families, of those of transformers without loading them."""
    remote = [family.name for family in OF_REMOTE_CODE]
    return [*OF_TRANSFORMERS.values(), *OF_BUCKETS.values(), *remote, *_registered]


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
    if name.lower() in {known.lower() for known in names()}:
        raise ValueError(f"name of a family must be one that is not taken, got {name!r}")
    _registered[name] = family


def found(model: nn.Module, given: Family | None = None) -> tuple[Family | None, list[nn.Module]]:
    """Return the family whose attention a model holds, or the given one, and modules to patch.

    Raises:
        TypeError: model is no torch module, or the given family is none.
    """
    if not isinstance(model, nn.Module):
        advice = ""
        if isinstance(model, str):
            advice = ": load it by transformers.AutoModelForCausalLM.from_pretrained(...)"
        elif isinstance(model, type):
            advice = ": pass an instance"
        elif callable(getattr(model, "undo", None)):
            advice = ": call its undo()"
        elif isinstance(getattr(model, "model", None), nn.Module):
            advice = ": pass its .model"
        elif isinstance(model, tuple) and model and isinstance(model[0], nn.Module):
            advice = ": pass its first item"
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}{advice}")
    if given is not None:
        return given, check_family(given).find(model)
    for part in model.modules():  # a patched model is of the family of its patch
        family = family_of(part)
        if family is not None:
            return family, family.find(model)
    for family in families():
        if targets := family.find(model):
            return family, targets
    for part in model.modules():
        if _is_transformers(part):
            check_version()
    return None, []


def _is_transformers(module: nn.Module) -> bool:
    own = type(module)
    known = own.__name__ in {**OF_TRANSFORMERS, **OF_BUCKETS}
    return known and own.__module__.startswith("transformers.")
