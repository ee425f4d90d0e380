"""The pass of a patched model, made of its tokens: the padding mask and the cache are read here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch.nn import functional as F

from ntk_alibi import _checks
from ntk_alibi._torch_state import JIT, find_tracer, has_values, is_followed
from ntk_alibi.integrations import own_bias
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.forward_pass import ForwardPass, limits_up_to, problem_of
from ntk_alibi.integrations.packed_segments import PackedSegments
from ntk_alibi.integrations.pair_masks import check_shape, problem_of_pairs, read_pairs, shown
from ntk_alibi.integrations.settings import check_layers, current, stack_of
from ntk_alibi.integrations.tables import NoBias
from ntk_alibi.integrations.tokens import Tokens
from ntk_alibi.masks import EVERYTHING, Mask, checked_attention_mask
from ntk_alibi.scaling import Scaling, scaling_per

BIDIRECTIONAL = Mask(causal=False)

BEGAN_WITH_PADDING = (
    "attention_mask must be given again with a WindowCache whose rows began with padding, got None"
)

#: The batch, the number of new tokens, and the number of keys besides a cache's.
Sizes = tuple[int, int, int]


def make_pass(
    attend: Any, tokens: Tokens, sizes: Sizes, device: torch.device, cache: Any, *, weights: bool
) -> ForwardPass:
    """Return the pass of some tokens in a layer.

    Args:
        attend: the `Attend` of the layer.
        tokens: the tokens.
        sizes: batch, new tokens, and keys without the keys of a cache.
        device: the device of the layer's queries.
        cache: the cache before this pass, or None.
        weights: whether the caller wants all weights.
    """
    model, family, rule = attend.model, attend.family, attend.rule
    settings = current(model)
    _checks.check_no_context_parallel()
    if attend.causal and not getattr(getattr(model, "config", None), "is_causal", True):
        raise ValueError(
            f"config.is_causal must be True for a patched {type(model).__name__}, got False"
        )
    if stack_of(model)[-1] is None:  # settings of its configuration
        family.check_settings(settings)
        check_layers(settings.scaling, len(family.layers(model)))
    if weights or tokens.weights:
        settings = replace(settings, attention="eager")
    tracer = find_tracer()
    if tracer == JIT or (tracer and settings.attention != "eager"):
        advice = "use patch(model, scaling, attention='traceable')"
        if not family.decoder:
            advice = "take the model without patch"
        raise ValueError(
            f"attention must be 'traceable' where {tracer} traces a patched model, got "
            f"{settings.attention!r}, which reads the mask: {advice}"
        )
    own = own_bias.held_by(model, settings.bias) if settings.bias is not None else {}
    heads = family.own_heads(attend.layer, model, rule.heads, settings, own)
    batch, queries, keys = sizes
    padding = tokens.padding
    if tokens.segments is not None:
        return _packed_pass(tokens.segments, rule, settings, sizes, own)
    # Layers of others add a mask of keys alone to a causal one of their own.
    of_pairs = getattr(padding, "ndim", 2) == 4
    if of_pairs and (not attend.causal or family.code is None):
        of_pairs = tuple(padding.shape[1:3]) != (1, 1)
    if attend.crosses:
        return _crossing_pass(attend, padding, settings, sizes, device, of_pairs=of_pairs)
    past = 0 if cache is None else int(cache.get_seq_length(attend.number))
    if past:
        warn_of_older_slopes(settings.scaling)
    end = past + keys
    if attend.causal:
        limits = limits_up_to(end - 1, settings.mask)
    else:
        limits = settings.mask._replace(causal=False)
    if hasattr(cache, "expect"):  # a `WindowCache`
        if of_pairs:
            raise ValueError(
                "attention_mask must have shape (batch, keys) with a WindowCache, got "
                f"{tuple(padding.shape)}"
            )
        mask, skipped = _held(settings.mask, cache, padding, (batch, past, queries), device)
        if queries == 1:  # which sees all keys that are held
            limits = EVERYTHING if attend.causal else BIDIRECTIONAL
        held = mask.shape[1]
        at = slice(held - queries, held)
        problem = problem_of(mask, at, rule, limits, skipped, unpadded=padding is None)
        return ForwardPass(mask, problem, rule, settings, own=own, heads=heads)
    capacity = end if cache is None else cache.get_mask_sizes(queries, attend.number)[0]
    name = "attention_mask" if family.code is not None else "mask"
    if of_pairs:
        shape = batch, rule.heads, queries, end
        read = read_pairs(padding, name, shape, capacity)
        mask, holes = read.real_keys(batch), rule.counts_holes
        positions = None if holes else tokens.positions
        problem = problem_of_pairs(read, shape, limits, positions, counts_holes=holes)
    else:
        if attend.table is not None and cache is not None and getattr(padding, "ndim", 0) == 2:
            # To transformers the tokens that a decoder's mask does not reach are hidden.
            padding = F.pad(padding, (0, max(end - padding.shape[1], 0)))
        mask = real_keys(padding, batch, end, device, name, capacity=capacity)
        at, unpadded = slice(end - queries, end), padding is None and capacity == end
        problem = problem_of(mask[:, :end], at, rule, limits, unpadded=unpadded)
    if capacity > mask.shape[1]:
        mask = F.pad(mask, (0, capacity - mask.shape[1]))
    falls = of_pairs and attend.causal
    return ForwardPass(mask, problem, rule, settings, own=own, heads=heads, falls=falls)


def _crossing_pass(
    attend: Any, padding: Any, settings: Any, sizes: Sizes, device: torch.device, *, of_pairs: bool
) -> ForwardPass:
    """Return the pass of queries that attend to an encoder's tokens, all without a bias."""
    rule, shared, name = attend.rule, attend.tokens, "encoder_attention_mask"
    batch, queries, keys = sizes
    if of_pairs:
        shape = batch, rule.heads, queries, keys
        read = read_pairs(padding, name, shape, keys)
        problem = problem_of_pairs(read, shape, BIDIRECTIONAL)
        real = read.real_keys(batch)
        return ForwardPass(real, problem, rule, settings, own={None: NoBias(rule.heads)})
    real, unpadded = real_keys(padding, batch, keys, device, name), padding is None
    of = settings, queries, unpadded
    keeps = real.is_cpu and not is_followed(real)
    if keeps and shared.crossing is not None:
        made_of, last, made = shared.crossing
        if made_of == of and torch.equal(last, real):
            return cast(ForwardPass, made)
    problem = problem_of(real, slice(0, queries), rule, BIDIRECTIONAL, unpadded=unpadded)
    made = ForwardPass(real, problem, rule, settings, own={None: NoBias(rule.heads)})
    if keeps:
        shared.crossing = of, real.clone(), made  # real may be a user's mask
    return made


def _packed_pass(
    segments: PackedSegments, rule: Any, settings: Any, sizes: Sizes, own: Any
) -> ForwardPass:
    """Return the pass of packed rows without padding."""
    batch, queries, _ = sizes
    keys = segments.keys.shape[1]
    mask = torch.ones((batch, keys), dtype=torch.bool, device=segments.keys.device)
    limits = limits_up_to(keys - 1, settings.mask)
    problem = problem_of(mask, slice(keys - queries, keys), rule, limits, segments=segments)
    return ForwardPass(mask, problem, rule, settings, own=own, cache=segments.cache)


def check_inputs(given: Mapping[str, Any], *, devices: bool = False) -> None:
    """Check the tokens and the mask of a patched model; masks on devices are read if wanted."""
    for name in ("input_ids", "inputs_embeds", "attention_mask"):
        if type(given.get(name)) not in (torch.Tensor, type(None)):
            _checks.check_plain(name, given[name])
    mask = given.get("attention_mask")
    if mask is None or mask.ndim != 2 or mask.dtype == torch.bool or not has_values(mask):
        return
    if (mask.is_cpu or devices) and not bool(((mask == 0) | (mask == 1)).all()):
        checked_attention_mask(mask)  # its error names what it must be


def real_keys(
    mask: Any,
    batch: int,
    keys: int,
    device: torch.device,
    name: str,
    *,
    capacity: int = 0,
) -> torch.Tensor:
    """Return a mask of padding, in a form that `Attend` takes, as (batch, keys), True if real.

    Args:
        mask: None, a mask (batch, keys) that is not 0 for real keys, or one of keys alone in four
            dimensions, (1 or batch, 1, 1, keys), boolean or of values to add to scores.
        batch: the number of rows.
        keys: the number of keys that the last query may see.
        device: the device of the result.
        name: the mask's name in messages.
        capacity: the number of keys that a static cache has room for; a mask may have columns for
            those behind the last query, too.
    """
    if mask is None:
        return torch.ones((batch, keys), dtype=torch.bool, device=device)
    _checks.check_plain(name, mask)
    shape = tuple(mask.shape)
    if len(shape) == 4 and shape[0] in (1, batch) and shape[1:] == (1, 1, keys):
        return shown(mask, name)[:, 0, 0].to(device).expand(batch, keys)
    check_shape(mask, name, (batch, keys), capacity)
    return cast(torch.Tensor, mask.to(device) != 0)


def _held(
    rule: Mask,
    cache: Any,
    padding: Any,
    sizes: tuple[int, int, int],
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the mask of the keys that a bounded cache will return, and rows' evicted tokens.

    A single query sees all of these keys, at their distances in the cache; each of several queries
    sees only some of them.
    """
    shared = cache.shared
    held, seen = (shared.window, shared.sink), (rule.window, rule.sink)
    if held != seen or rule.causal_block is not None:
        raise ValueError(
            f"{CACHE} must hold what the patch shows, got WindowCache{held} with "
            f"window={seen[0]}, sink={seen[1]}, causal_block={rule.causal_block}"
        )
    batch, past, queries = sizes
    total = past + queries
    cache.expect(queries)
    keys = cache.get_mask_sizes(queries, 0)[0]
    if not (padding is not None or shared.padding is None or past == 0):
        raise ValueError(BEGAN_WITH_PADDING)
    if padding is None:
        mask = torch.ones((batch, keys), dtype=torch.bool, device=device)
        shared.padding = None
        evicted = total - keys
        return mask, torch.full((batch,), evicted, device=device) if evicted > 0 else None
    mask = real_keys(padding, batch, total, device, "attention_mask")
    real = mask.sum(dim=1)
    last_columns = torch.arange(total, device=device) >= total - real[:, None]
    if rows_with_holes := (mask != last_columns).any(dim=1).nonzero().flatten().tolist():
        raise ValueError(
            "attention_mask must have padding on the left only with a WindowCache, got 0 "
            f"behind 1 in rows {rows_with_holes}"
        )
    if past and shared.padding is not None and bool((real == total).all()):
        raise ValueError(BEGAN_WITH_PADDING)
    shared.padding = None if bool((real == total).all()) else total - real
    skipped = (real - keys).clamp(min=0)
    return mask[:, total - keys :], skipped if bool(skipped.any()) else None


def warn_of_older_slopes(scaling: Scaling | None) -> None:
    """Warn of cached keys that were computed under the slopes of a shorter text."""
    if scaling_per(scaling) == "sequence":
        warnings.warn(
            f"{scaling!r} chooses its slopes by the length of the whole text, but the cached keys "
            "were computed under the slopes of a shorter one; per='query' agrees with its cache",
            stacklevel=2,
        )
