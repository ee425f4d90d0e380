"""The configuration of a patched model: the model's own, but for the name of its attention.

transformers chooses the mask function of a pass by that name. Other models may share the object.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from ntk_alibi.integrations.tokens import NAME


def patched_config(own: Any) -> Any:
    """Return a configuration that has all attributes in common with another, but for the name."""
    kind: Any = type(own)
    view: Any = object.__new__(_class_like(kind))
    view.__dict__ = own.__dict__
    view.own_config = own
    return view


@functools.cache
def _class_like(config_class: type) -> type:
    """Return a class with the name of a class of configurations, by which transformers finds it."""
    stock: Any = config_class

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        return patched_config(copy.deepcopy(self.own_config, memo))

    def reduced(self: Any, _: Any) -> tuple[Any, ...]:
        return patched_config, (self.own_config,)

    def set_name(self: Any, value: Any) -> None:
        self.own_config._attn_implementation = value

    return type(
        config_class.__name__,
        (config_class,),
        {
            "__module__": config_class.__module__,
            "__slots__": ("own_config",),
            "__doc__": stock.__doc__,
            "__deepcopy__": copied,
            "__reduce_ex__": reduced,
            "_attn_implementation": property(lambda _: NAME, set_name),
        },
    )
