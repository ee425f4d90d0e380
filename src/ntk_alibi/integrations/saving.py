"""Saving patched models: config.json gets what the patch in force computes.

The class's `save_pretrained` is wrapped, since Trainer, push_to_hub and models that hold ours call
it on objects that no patch has seen. It changes nothing for models without patches.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedModel

from ntk_alibi.integrations.settings import CONFIGURED, PATCHED, own_config, stack_of


@functools.cache
def register() -> None:
    """Let transformers' save_pretrained write patches, once."""
    stock: Any = PreTrainedModel.save_pretrained

    @functools.wraps(stock)
    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _config_of_patches(self):
            return stock(self, *args, **kwargs)

    PreTrainedModel.save_pretrained = save_pretrained  # type: ignore[method-assign]


@contextlib.contextmanager
def _config_of_patches(model: Any) -> Iterator[None]:
    """Give a model a configuration with the settings of its patches, for the time of a save.

    It is a copy, since other models may have the same configuration and compute meanwhile.
    """
    patches: list[tuple[Any, Any, dict[str, Any]]] = []
    for target in model.modules():
        stack = stack_of(target)
        if not stack or stack[-1] is None:
            continue
        family = getattr(target, PATCHED).family
        config_class = family.config_class()
        if config_class is None:
            warnings.warn(
                f"the model is saved without its patch ({stack[-1]!r}), which the code of a "
                f"{family.name} does not read from a configuration: after loading, call na.patch",
                stacklevel=4,
            )
            continue
        patches.append((target, config_class, stack[-1].to_config()))
    if not patches:
        yield
        return
    shared = model.config
    copies: dict[int, Any] = {}
    model.config = copy.deepcopy(shared, copies)
    try:
        for target, config_class, entries in patches:
            own = copies.get(id(own_config(target.config)), model.config)
            if not isinstance(own, config_class):
                raise ValueError(
                    f"config must hold the configuration of its {type(target).__name__} to save a "
                    f"patch, got {type(own).__name__}: call na.unpatch(model) before "
                    "save_pretrained, and na.patch after loading"
                )
            for name in CONFIGURED:
                if name in entries:
                    setattr(own, f"alibi_{name}", entries[name])
                else:
                    vars(own).pop(f"alibi_{name}", None)
        yield
    finally:
        model.config = shared
