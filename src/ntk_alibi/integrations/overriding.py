"""Override methods, plain values and the mode of one module instance, and restore them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn


def override(module: nn.Module, name: str, replacement: Any) -> tuple[Any, ...]:
    """Give this instance another method, bound to it, another plain value, or one more part.

    Methods are bound by a partial, which deep copies and pickles bind to the copy. A static method
    is the same object in all modules, which torch.compile then does not tell apart.

    Returns:
        The plain value that was replaced, or nothing.
    """
    if isinstance(replacement, nn.Module):
        setattr(module, name, replacement)
    elif isinstance(replacement, staticmethod):
        setattr(module, _slot(module, name), replacement.__func__)
    elif callable(replacement):
        setattr(module, _slot(module, name), partial(replacement, module))
    else:
        value = getattr(module, name)
        setattr(module, name, replacement)
        return (value,)
    return ()


def restore(module: nn.Module, name: str, values: tuple[Any, ...]) -> None:
    """Undo `override`, which returned these values."""
    slot = _slot(module, name)
    if values:
        setattr(module, name, *values)
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
