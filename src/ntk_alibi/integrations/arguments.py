"""The arguments of a model's forward, by name.

The name of the cache changed in transformers 5.24.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from packaging.version import Version
from torch import nn

from ntk_alibi.integrations.classes import stock_class
from ntk_alibi.integrations.transformers_versions import transformers_version

#: The names of the cache in the installed version, the current one first. Before 5.24 `cache` was
#: the paged cache of continuous batching alone.
CACHES = (
    ("cache", "past_key_values")
    if Version(transformers_version() or "0") >= Version("5.24")
    else ("past_key_values",)
)

#: The name by which models of the installed version take a cache without a warning.
CACHE = CACHES[0]


def positional_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the arguments that a model's forward takes by position, too.

    Hooks keep them, since what torch traces cannot ask for them.
    """
    parameters = list(inspect.signature(stock_class(model).forward).parameters.values())[1:]
    return tuple([x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD])


def inputs_of(arguments: Mapping[str, Any]) -> Any:
    """Return the input_ids or inputs_embeds among a model's arguments, or None."""
    ids = arguments.get("input_ids")
    return arguments.get("inputs_embeds") if ids is None else ids


def cache_of(arguments: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a model or layer, or None.

    A paged cache, which has no length of its own, is none.
    """
    for name in CACHES:
        cache = arguments.get(name)
        if cache is not None and hasattr(cache, "get_seq_length"):
            return cache
    return None


def may_repeat_cache(arguments: Mapping[str, Any]) -> bool:
    """Return whether a call may be the second pass of generate() with a cache that it leaves.

    generate() passes the whole text then, one token more than the cache holds, and the cache would
    hold it twice. Other calls may have as many tokens, and read a cache without a wish to keep it.
    """
    cache, inputs = cache_of(arguments), inputs_of(arguments)
    if cache is None or inputs is None:
        return False
    repeats = 0 < int(cache.get_seq_length()) == int(inputs.shape[1]) - 1
    mask = arguments.get("attention_mask")
    if repeats and getattr(mask, "shape", ())[1:] == inputs.shape[1:2]:
        _refuse_repeated()  # a mask of the text alone, which has no columns for what is cached
    return repeats


def check_not_repeated(key: torch.Tensor, cache: Any, index: int) -> None:
    """Refuse a first layer's keys of the tokens that a cache holds: no position is in them."""
    if not hasattr(cache, "layers"):  # whose keys nobody can compare
        _refuse_repeated()
    past = int(cache.get_seq_length(index))
    held = cache.layers[index].keys[:, :, :past]
    if held.shape == key[:, :, :past].shape:
        apart = (held - key[:, :, :past]).abs().amax()
        if bool(apart <= 0.02 * held.abs().amax()):  # a cache may be rounded to eight bits
            _refuse_repeated()


def _refuse_repeated() -> NoReturn:
    raise ValueError(
        f"use_cache must be True with {CACHE} in generate(), got False, as the config of an MPT "
        "has it: generate(..., use_cache=True)"
    )
