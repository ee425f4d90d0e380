"""Checks of the caches of patched models."""

from __future__ import annotations


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
