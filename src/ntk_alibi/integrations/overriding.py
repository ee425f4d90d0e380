"""Override methods, plain values and the mode of one module instance, and restore them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

#: The arguments of `restore`: a module, a name, and the plain value that was replaced, or nothing.
Restored = tuple[nn.Module, str, tuple[Any, ...]]


def override(module: nn.Module, name: str, replacement: Any) -> Restored:
    """Give this instance another method, bound to it, another plain value, or one more part.

    Methods are bound by a partial, which deep copies and pickles bind to the copy. A static method
    is the same object in all modules, which torch.compile then does not tell apart.

    Returns:
        The arguments of `restore`, which takes it back.
    """
    values: tuple[Any, ...] = ()
    if isinstance(replacement, nn.Module):
        setattr(module, name, replacement)
    elif isinstance(replacement, staticmethod):
        setattr(module, _slot(module, name), replacement.__func__)
    elif callable(replacement):
        setattr(module, _slot(module, name), partial(replacement, module))
    else:
        values = (getattr(module, name),)
        setattr(module, name, replacement)
    return module, name, values


def restore(module: nn.Module, name: str, values: tuple[Any, ...]) -> None:
    """Undo `override`, which returned these arguments."""
    slot = _slot(module, name)
    if values:
        setattr(module, name, *values)
    elif slot == name:
        delattr(module, slot)
    else:
        setattr(module, slot, getattr(type(module), name).__get__(module))


@contextmanager
def replaced(replacements: Iterable[tuple[nn.Module, str, Any]]) -> Iterator[None]:
    """Put replacements in force for a time."""
    replaced_ones = [override(*replacement) for replacement in replacements]
    try:
        yield
    finally:
        for replacement in replaced_ones:
            restore(*replacement)


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
