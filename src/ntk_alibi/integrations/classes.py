"""The class of a patched module: a subclass of its own one, with the same name.

torch's parametrizations and FSDP2 do the same. Wrappers, copies and pickles of a module then bind
its methods as methods of any class, and nothing but a mark is on the instance.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from torch import nn

#: The attribute of a patched model that holds its `Patch`.
PATCH = "_ntk_alibi_patch"

#: The attribute of another patched module: of an attention layer its `Place`, else None.
PLACE = "_ntk_alibi_place"

#: Where accelerate's hooks keep a module's forward.
_HOOKED = "_old_forward"

_STOCK, _DIRECT = "_ntk_alibi_stock", "_ntk_alibi_direct"

#: The methods of a class, by name, each a function of the module and of the arguments.
Methods = tuple[tuple[str, Callable[..., Any]], ...]

#: Every class that was made, by all that it depends on.
_made: dict[tuple[type, Methods], type] = {}


class Place:
    """The place of an attention layer in its model; the one of a copied layer knows no `Attend`.

    Attributes:
        key: the number of the layer, and whether it attends to other states.
        attend: returns the layer's `Attend` that was found last, or None, by a weak reference.
            Dynamo reads it anew for each layer, where it would compile each number by itself.
    """

    def __init__(self, key: tuple[int, bool], attend: Any = None) -> None:
        self.key = key
        self.attend: Callable[[], Any] = _nothing if attend is None else weakref.ref(attend)

    def __reduce__(self) -> tuple[Any, ...]:
        return Place, (self.key,)


def _nothing() -> None:
    """Return None, as a weak reference to an object that is gone does."""


def stock_class(module: nn.Module) -> Any:
    """Return the class that a module has without a patch."""
    return getattr(type(module), _STOCK, type(module))


def stock(cls: type) -> Any:
    """Return the class of which a class was made, or the class itself."""
    return getattr(cls, _STOCK, cls)


def put(module: nn.Module, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Give a module methods by its class, in place of those that an earlier patch gave it.

    Raises:
        ValueError: others have put a forward on the instance.
    """
    cls, own = type(module), stock_class(module)
    held = "forward" in vars(module) and _HOOKED not in vars(module)
    if held and cls is own and not _holds_its_class(module):
        raise ValueError(
            f"model must be patched before others replace a forward, got a {cls.__name__} with a "
            "forward of its own: patch first"
        )
    if cls is own or _STOCK in vars(cls):  # others may have made a class of ours
        _change(module, _class_of(own, tuple(sorted(methods.items()))))


def take_back(module: nn.Module) -> None:
    """Give a module its own class again, unless others have made a class of ours since."""
    if _STOCK in vars(type(module)):
        _change(module, stock_class(module))


def _holds_its_class(module: nn.Module) -> bool:
    """Return whether a module holds a forward of its class, as accelerate leaves it there."""
    known = type(module).forward, stock_class(module).forward
    return getattr(vars(module)["forward"], "__func__", None) in known


def _change(module: nn.Module, cls: Any) -> None:
    """Change the class of a module, and what holds the forward of the class that it had."""
    again = "forward" in vars(module) and _HOOKED not in vars(module) and _holds_its_class(module)
    module.__class__ = cls
    if _HOOKED in vars(module):
        setattr(module, _HOOKED, cls.forward.__get__(module))
    elif again:
        del module.forward


def _class_of(stock: type, methods: Methods) -> type:
    """Return the class with these methods; the same one for the same arguments."""
    if (stock, methods) not in _made:
        names = {"__module__": stock.__module__, "__qualname__": stock.__qualname__}
        space: dict[str, Any] = {**names, "__doc__": stock.__doc__, _STOCK: stock}
        for name, replacement in methods:
            like = _copy if getattr(replacement, _DIRECT, False) else _method
            space[name] = like(getattr(stock, name, None), replacement)

        cls: Any

        def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: N807 - a method of the class
            made, arguments, *state = super(cls, self).__reduce_ex__(protocol)
            if type(self) is not cls:
                return made, arguments, *state
            return _new, (stock, methods), *state

        space["__reduce_ex__"] = __reduce_ex__
        cls = type(stock)(stock.__name__, (stock,), space)
        _made[stock, methods] = cls
    return _made[stock, methods]


def direct(function: Any) -> Any:
    """Let a function, of no closure and no defaults, be a method itself: no call more in a layer.

    It suits a module without mark, too: it asks for the mark, or computes the same.
    """
    setattr(function, _DIRECT, True)
    return function


def _copy(own: Any, replacement: Any) -> Any:
    """Return a function like a replacement with the signature of a class's own method."""
    copied = FunctionType(replacement.__code__, replacement.__globals__, replacement.__name__)
    return functools.update_wrapper(copied, own)


def _method(own: Any, replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that replaces a module's own one as long as the module has its mark."""

    @functools.wraps(replacement if own is None else own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if own is None or hasattr(self, PATCH) or hasattr(self, PLACE):
            return replacement(self, *args, **kwargs)
        return own(self, *args, **kwargs)

    return method


def _new(stock: type, methods: Methods) -> Any:
    """Return a module of a class, without attributes, for copies and pickles."""
    cls: Any = _class_of(stock, methods)
    return cls.__new__(cls)
