"""The argument by which transformers' models take a cache, whose name transformers 5.24 changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from ntk_alibi.integrations.transformers_versions import transformers_version

#: The names of the argument in the installed version, the current one first. Before 5.24 `cache`
#: was that of the paged cache of continuous batching alone.
NAMES = (
    ("cache", "past_key_values")
    if Version(transformers_version() or "0") >= Version("5.24")
    else ("past_key_values",)
)

#: The name by which models of the installed version take a cache without a warning.
CACHE = NAMES[0]


def cache_of(arguments: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a model or layer, or None.

    A paged cache, which has no length of its own, is none.
    """
    given = [arguments.get(name) for name in NAMES]
    return next((x for x in given if hasattr(x, "get_seq_length")), None)


def paged_cache_of(arguments: Mapping[str, Any]) -> Any:
    """Return the paged cache of continuous batching among the arguments of a model, or None."""
    cache = arguments.get("cache")
    return None if cache is cache_of(arguments) else cache
