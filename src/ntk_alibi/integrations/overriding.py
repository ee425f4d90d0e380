"""Override methods, plain values and the mode of one module instance, and restore them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

#: Where accelerate's hooks keep a module's forward.
_HOOKED = "_old_forward"

#: The arguments of `restore`: a module, the name of an attribute, what took its place, and what the
#: instance had before, or nothing.
Restored = tuple[nn.Module, str, Any, tuple[Any, ...]]


def override(module: nn.Module, name: str, replacement: Any) -> Restored:
    """Give this instance another method, bound to it, another plain value, or one more part.

    Methods are bound by a partial, which deep copies and pickles bind to the copy. A static method
    is the same object in all modules, which torch.compile then does not tell apart.

    Returns:
        The arguments of `restore`, which takes it back.
    """
    if isinstance(replacement, staticmethod):
        replacement = replacement.__func__
    elif callable(replacement) and not isinstance(replacement, nn.Module):
        replacement = partial(replacement, module)
    slot = _HOOKED if name == "forward" and hasattr(module, _HOOKED) else name
    before = (vars(module)[slot],) if slot in vars(module) else ()
    setattr(module, slot, replacement)
    return module, name, replacement, before


def restore(module: nn.Module, name: str, replacement: Any, before: tuple[Any, ...]) -> None:
    """Undo `override`, which returned these arguments, unless others have wrapped it since."""
    slots = [name, _HOOKED] if name == "forward" else [name]
    for slot in slots:
        if getattr(module, slot, None) is not replacement:
            continue
        own = type(module).forward.__get__(module) if name == "forward" else None
        if slot == _HOOKED:
            setattr(module, slot, *(before or (own,)))
        elif before and before[0] != own:
            setattr(module, slot, *before)
        else:
            delattr(module, slot)


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
