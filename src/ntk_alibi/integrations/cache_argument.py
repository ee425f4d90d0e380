"""The argument by which transformers' models take a cache: its names and what goes with it.

Its name changed in transformers 5.24.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from ntk_alibi.integrations.transformers_versions import transformers_version
from ntk_alibi.scaling import Scaling, scaling_per

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


def check_cache_in_use(cache: Any, use_cache: Any, tokens: int) -> None:
    """Refuse the second pass of generate() with a cache in a call that says that there is none.

    generate() passes the whole text then, one token more than the cache holds, and the cache would
    hold it twice. Other calls may read a cache without a wish to keep it.
    """
    if cache is not None and use_cache is False and 0 < cache.get_seq_length() == tokens - 1:
        raise ValueError(
            f"use_cache must be True with {CACHE} in generate(), got False, as the config "
            "of an MPT has it: generate(..., use_cache=True)"
        )


def warn_of_older_slopes(scaling: Scaling | None, past: int) -> None:
    """Warn of cached keys that were computed under the slopes of a shorter text."""
    if past and scaling_per(scaling) == "sequence":
        warnings.warn(
            f"{scaling!r} chooses its slopes by the length of the whole text, but the cached keys "
            "were computed under those of a shorter one; per='query' agrees with its own cache",
            stacklevel=2,
        )
