"""Passes with a bounded cache, which holds the sinks and the window of a patch."""

from __future__ import annotations

from typing import Any

import torch

from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.integrations.passes.inputs import PassInputs
from ntk_alibi.integrations.passes.rows import problem_of, real_keys
from ntk_alibi.masks import Mask

BEGAN_WITH_PADDING = (
    "attention_mask must be given again with a WindowCache whose rows began with padding, got None"
)


def begin(inputs: PassInputs) -> Pass:
    """Return the pass of rows with a bounded cache."""
    if inputs.masks_pairs:
        raise ValueError(
            "attention_mask must have shape (batch, keys) with a WindowCache, got "
            f"{tuple(inputs.mask.shape)}"
        )
    _check_window(inputs.cache, inputs.settings.mask)
    real, skipped = _held(inputs, inputs.cache)
    queries, held = inputs.sizes[1], real.shape[1]
    limits = inputs.limits(inputs.past + queries)
    if queries == 1:  # which sees all keys that are held
        limits = Mask(causal=inputs.attend.causal)
    at, rule, unpadded = slice(held - queries, held), inputs.attend.patch.rule, inputs.mask is None
    return Pass(inputs, real, problem_of(real, at, rule, limits, skipped, unpadded=unpadded))


def _check_window(cache: Any, rule: Mask) -> None:
    """Check that a cache holds what a patch shows."""
    held, seen = (cache.shared.window, cache.shared.sink), (rule.window, rule.sink)
    if held != seen or rule.causal_block is not None:
        raise ValueError(
            f"{CACHE} must hold what the patch shows, got WindowCache{held} with "
            f"window={seen[0]}, sink={seen[1]}, causal_block={rule.causal_block}"
        )


def _held(inputs: PassInputs, cache: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the mask of the keys that the cache will return, and rows' evicted tokens.

    A single query sees all of these keys, at their distances in the cache; each of several queries
    sees only some of them.
    """
    (batch, queries, _), past, device, shared = (
        inputs.sizes,
        inputs.past,
        inputs.device,
        cache.shared,
    )
    total = past + queries
    cache.expect(total)
    keys = cache.get_mask_sizes(queries, inputs.attend.index)[0]
    if inputs.mask is None:
        if past and shared.padding is not None:
            raise ValueError(BEGAN_WITH_PADDING)
        shared.padding, evicted = None, total - keys
        real = torch.ones((batch, keys), dtype=torch.bool, device=device)
        return real, torch.full((batch,), evicted, device=device) if evicted > 0 else None
    mask = real_keys(inputs, inputs.mask, total)
    counts = mask.sum(dim=1)
    last_columns = torch.arange(total, device=device) >= total - counts[:, None]
    if rows_with_holes := (mask != last_columns).any(dim=1).nonzero().flatten().tolist():
        raise ValueError(
            "attention_mask must have padding on the left only with a WindowCache, got 0 "
            f"behind 1 in rows {rows_with_holes}"
        )
    unpadded = bool((counts == total).all())
    if past and shared.padding is not None and unpadded:
        raise ValueError(BEGAN_WITH_PADDING)
    shared.padding = None if unpadded else total - counts
    skipped = (counts - keys).clamp(min=0)
    return mask[:, total - keys :], skipped if bool(skipped.any()) else None
