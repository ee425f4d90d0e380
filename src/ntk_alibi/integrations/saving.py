"""Saving patched models: config.json gets what the patch in force computes.

The class's `save_pretrained` is wrapped, since Trainer, push_to_hub and models that hold ours call
it on objects that no patch has seen. It changes nothing for models without patches.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterable, Iterator
from typing import Any

from transformers import PreTrainedModel

from ntk_alibi.integrations.family import Family
from ntk_alibi.integrations.settings import CONFIGURED, stack_of


def register(families: Iterable[Family]) -> None:
    """Let transformers' save_pretrained write patches; called once."""
    families = tuple(families)
    stock: Any = PreTrainedModel.save_pretrained

    @functools.wraps(stock)
    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _config_of_patches(families, self):
            return stock(self, *args, **kwargs)

    PreTrainedModel.save_pretrained = save_pretrained  # type: ignore[method-assign]


@contextlib.contextmanager
def _config_of_patches(families: Iterable[Family], model: Any) -> Iterator[None]:
    """Give a model a configuration with the settings of its patches, for the time of a save.

    It is a copy, since other models may have the same configuration and compute meanwhile.
    """
    patches = [
        (family, target, stack[-1].to_config())
        for family in families
        for target in family.find(model)
        if (stack := stack_of(target)) and stack[-1] is not None
    ]
    if not patches:
        yield
        return
    shared = model.config
    copies: dict[int, Any] = {}
    model.config = copy.deepcopy(shared, copies)
    try:
        for family, target, entries in patches:
            own = copies.get(id(target.config), model.config)
            kind: Any = family.model
            if not isinstance(own, kind.config_class):
                raise ValueError(
                    f"config must hold the configuration of its {kind.__name__} to save a patch, "
                    f"got {type(own).__name__}: call na.unpatch(model) before save_pretrained, and "
                    "na.patch after loading"
                )
            for name in CONFIGURED:
                if name in entries:
                    setattr(own, f"alibi_{name}", entries[name])
                else:
                    vars(own).pop(f"alibi_{name}", None)
        yield
    finally:
        model.config = shared
