"""Start of a patched model's forward pass: read the padding mask and the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ntk_alibi import _arrays, _checks
from ntk_alibi.integrations import own_bias
from ntk_alibi.integrations.arguments import (
    by_name,
    check_padding,
    given_mask,
    padding_of,
    tokens_of,
)
from ntk_alibi.integrations.begin_shared_pass import begin_shared_pass
from ntk_alibi.integrations.cache_argument import (
    CACHE,
    cache_of,
    check_cache_in_use,
    warn_of_older_slopes,
)
from ntk_alibi.integrations.caches.sharded import ShardedCache
from ntk_alibi.integrations.caches.window import WindowCache
from ntk_alibi.integrations.forward_pass import ForwardPass, limits_up_to, problem_of, untraced
from ntk_alibi.integrations.passed_through import PackedTexts
from ntk_alibi.integrations.settings import (
    check_layers,
    check_own_masks,
    current,
    follows_config,
)
from ntk_alibi.masks import EVERYTHING, Mask

#: Arguments of a model's forward that `begin_pass` reads.
INPUTS = ("input_ids", "inputs_embeds", CACHE, "attention_mask")


@untraced
def begin_pass(
    family: Any, names: tuple[str, ...], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:
    """Replace the padding mask by a `ForwardPass`; called before a patched model's forward.

    Args:
        family: the model's family, with `check_settings` for those of a configuration.
        names: the `positional_names` of the model.
        model: the model.
        args: the arguments of its forward that it gets by position.
        kwargs: those that it gets by name.
    """
    kwargs, rule = by_name(names, args, kwargs), family.rule(model)
    inputs = tokens_of(kwargs)
    option = kwargs.get("output_attentions")
    weights = bool(model.config.output_attentions if option is None else option)
    settings = current(model)
    if settings.ranks is not None:
        return (), begin_shared_pass(rule, settings, model, kwargs, inputs, weights=weights)
    _checks.whole_sequences()
    if inputs is None:
        return (), kwargs  # the model itself raises the error
    _checks.plain("input_ids or inputs_embeds", inputs)
    _checks.plain("attention_mask", kwargs.get("attention_mask"))
    given = kwargs.get("attention_mask")
    padding = given_mask(given)
    check_padding(padding)
    batch, queries = inputs.shape[:2]
    cache = cache_of(kwargs)
    cache = getattr(cache, "self_attention_cache", cache)  # of T5, beside that of other states
    check_cache_in_use(cache, kwargs.get("use_cache"), queries)
    texts = given if isinstance(given, PackedTexts) else None
    past = 0 if cache is None else int(cache.get_seq_length())
    if texts is not None:
        past = texts.keys.shape[1] - queries
        kwargs["use_cache"] = False  # a cache of the model would not know the texts
    capacity = past + queries if cache is None else cache.get_mask_sizes(queries, 0)[0]
    if follows_config(model):
        check_own_masks(settings.traceable)
        family.check_settings(settings)
        check_layers(settings.scaling, model.config.num_hidden_layers)
    if isinstance(cache, ShardedCache):
        raise ValueError(
            f"{CACHE} must not be a ShardedCache in a model that is patched without group: "
            "patch(model, scaling, group=group)"
        )
    sizes = batch, past, queries
    bounded = isinstance(cache, WindowCache)
    if bounded:
        mask, skipped = _held(model, settings.mask, cache, padding, sizes, inputs.device)
    else:
        mask, skipped = padding_of(model, padding, sizes, inputs.device), None
        mask = F.pad(mask, (0, max(0, capacity - mask.shape[1])))
    alone = bounded and queries == 1  # a query that sees all keys that the cache holds
    limits = EVERYTHING if alone else limits_up_to(past + queries - 1, settings.mask)
    warn_of_older_slopes(settings.scaling, past)
    if weights:
        settings = replace(settings, attention="eager")
    if _arrays.is_tracing() and settings.attention != "eager":
        raise ValueError(
            "attention must be 'traceable' where torch.export, make_fx or FakeTensorMode trace a "
            f"patched model, got {settings.attention!r}, which reads numbers of the mask: use "
            "patch(model, scaling, attention='traceable')"
        )
    if bounded:
        past = mask.shape[1] - queries
    end = past + queries
    problem = problem_of(
        mask[:, :end],
        slice(past, end),
        rule,
        limits,
        skipped,
        unpadded=padding is None and capacity == end,
        texts=texts,
    )
    own = own_bias.held_by(model, settings.bias)
    paged = None if texts is None else texts.cache
    kwargs["attention_mask"] = ForwardPass(mask, problem, rule, settings, own=own, cache=paged)
    return (), kwargs


def _held(
    model: nn.Module,
    rule: Mask,
    cache: WindowCache,
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
        raise ValueError(
            "attention_mask must be given again with a WindowCache whose rows began with padding, "
            "got None"
        )
    if padding is None:
        mask = torch.ones((batch, keys), dtype=torch.bool, device=device)
        shared.padding = None
        evicted = total - keys
        return mask, torch.full((batch,), evicted, device=device) if evicted > 0 else None
    mask = padding_of(model, padding, sizes, device)[:, :total]
    real = mask.sum(dim=1)
    last_columns = torch.arange(total, device=device) >= total - real[:, None]
    if rows_with_holes := (mask != last_columns).any(dim=1).nonzero().flatten().tolist():
        raise ValueError(
            "attention_mask must have padding on the left only with a WindowCache, got 0 "
            f"behind 1 in rows {rows_with_holes}"
        )
    shared.padding = None if bool((real == total).all()) else total - real
    skipped = (real - keys).clamp(min=0)
    return mask[:, total - keys :], skipped if bool(skipped.any()) else None
