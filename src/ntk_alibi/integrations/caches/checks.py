"""Checks of the caches of patched models."""

from __future__ import annotations

from typing import Any


def cache_in_use(cache: Any, use_cache: Any, tokens: int) -> None:
    """Refuse the second pass of generate() with a cache in a call that says that there is none.

    generate() passes the whole text then, one token more than the cache holds, and the cache would
    hold it twice. Other calls may read a cache without a wish to keep it.
    """
    if cache is not None and use_cache is False and 0 < cache.get_seq_length() == tokens - 1:
        raise ValueError(
            "use_cache must be True with past_key_values in generate(), got False, as the config "
            "of an MPT has it: generate(..., use_cache=True)"
        )


def of_patched_model(announced: int | None, seen: int) -> None:
    """Check that a patched model announced the tokens that a bounded cache gets."""
    if announced != seen:
        raise ValueError(
            "past_key_values must not be a WindowCache in a model that is not patched with its "
            "window, which would see other tokens: na.patch(model, window=window, sink=sink)"
        )


def dtype_of_rows(dtype: Any) -> bool:
    """Return whether a cache is to quantize keys and values."""
    if dtype is not None and not (isinstance(dtype, str) and dtype == "int8"):
        raise ValueError(f"dtype must be None or 'int8', got {dtype!r}")
    return dtype is not None


def still_held(call: str, seen: int, held: int) -> None:
    """Check that a bounded cache has evicted no token yet."""
    if seen > held:
        raise ValueError(
            f"{call} must come before the first token leaves a WindowCache, got it after {seen} "
            f"tokens, of which {held} are held: use GrowingCache where tokens are taken back"
        )


def not_recorded(recorded: bool) -> None:
    """Check that no gradients are lost in a quantized cache."""
    if recorded:
        raise ValueError(
            "dtype must be None in a GrowingCache where torch records gradients of the keys, got "
            "'int8', which holds numbers only: use torch.no_grad()"
        )


def not_assigned(name: str, value: object) -> None:
    """Refuse keys or values in the place of those that a quantized layer holds."""
    if value is not None:
        raise TypeError(
            f"{name} of a quantized layer must come by update, got {type(value).__name__}: only "
            "None may be assigned"
        )


def same_rows(held: tuple[int, ...], coming: tuple[int, ...]) -> None:
    """Check that tokens fit to those that a cache holds, in (batch, heads) and head_dim."""
    if (*held[:2], held[3]) != (*coming[:2], coming[3]):
        raise ValueError(
            f"past_key_values holds tokens of (batch, heads) = {tuple(held[:2])}, got "
            f"{tuple(coming[:2])}: take a new cache for other texts"
        )


def held_by_group(keys: int, columns: int) -> None:
    """Check that a spread cache gets the keys of a model that is patched with its group."""
    if keys > columns:
        raise ValueError(
            "past_key_values must not be a ShardedCache in a model that is not patched with its "
            f"group, got one with {keys} keys for {columns} columns: patch(model, scaling, "
            "group=group)"
        )
