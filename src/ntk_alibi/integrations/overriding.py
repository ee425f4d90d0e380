"""Override plain values and methods of one module instance, and its mode, and restore them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

#: The arguments of `restore`: a module, the name of an attribute, what took its place, and what the
#: instance had before, or nothing.
Restored = tuple[nn.Module, str, Any, tuple[Any, ...]]


def override(module: nn.Module, name: str, replacement: Any) -> Restored:
    """Give this instance another plain value or part, or a method, bound to it.

    Returns:
        The arguments of `restore`, which takes it back.
    """
    if callable(replacement) and not isinstance(replacement, nn.Module):
        replacement = partial(replacement, module)
    before = (vars(module)[name],) if name in vars(module) else ()
    setattr(module, name, replacement)
    return module, name, replacement, before


def restore(module: nn.Module, name: str, replacement: Any, before: tuple[Any, ...]) -> None:
    """Undo `override`, which returned these arguments, unless others have replaced it since."""
    if getattr(module, name, None) is not replacement:
        return
    if before:
        setattr(module, name, *before)
    else:
        delattr(module, name)


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
