"""Override methods, plain values and the mode of one module instance, and restore them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

#: The attribute of a module that keeps its replaced plain values.
_KEPT = "_ntk_alibi_kept"


def override(module: nn.Module, name: str, replacement: Any) -> None:
    """Give this instance another method, bound to it, or another plain value.

    Methods are bound by a partial, which deep copies and pickles bind to the copy. A static method
    is the same object in all modules, which torch.compile then does not tell apart.
    """
    if isinstance(replacement, staticmethod):
        setattr(module, _slot(module, name), replacement.__func__)
    elif callable(replacement):
        setattr(module, _slot(module, name), partial(replacement, module))
    else:
        setattr(module, _KEPT, {**getattr(module, _KEPT, {}), name: getattr(module, name)})
        setattr(module, name, replacement)


def restore(module: nn.Module, name: str) -> None:
    """Undo `override`."""
    slot, kept = _slot(module, name), getattr(module, _KEPT, {})
    if name in kept:
        setattr(module, name, kept.pop(name))
        if not kept:
            delattr(module, _KEPT)
    elif slot == name:
        delattr(module, slot)
    else:
        setattr(module, slot, getattr(type(module), name).__get__(module))


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Take dropout out of a model for a time; each part gets its own mode back."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def _slot(module: nn.Module, name: str) -> str:
    """Return the attribute of a method; accelerate's hooks move a module's forward."""
    return "_old_forward" if name == "forward" and hasattr(module, "_old_forward") else name
