"""Start of a patched model's forward pass on several ranks, which share the tokens of one text."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from ntk_alibi import _arrays, _checks
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.distributed.sharding import Layout, find_layout, rank_columns
from ntk_alibi.integrations.arguments import (
    CACHE,
    by_name,
    cache_of,
    check_cache_in_use,
    inputs_of,
    positional_names,
)
from ntk_alibi.integrations.caches.sharded import ShardedCache
from ntk_alibi.integrations.configuration import current
from ntk_alibi.integrations.forward_pass import ForwardPass, limits_up_to, problem_of, untraced
from ntk_alibi.integrations.making import real_keys, warn_of_older_slopes
from ntk_alibi.integrations.shared_pass import OwnTokens, SpreadKeys
from ntk_alibi.integrations.tokens import Tokens, padding_in
from ntk_alibi.masks import checked_attention_mask

#: Number of tokens of each rank from which a prompt is cut into parts.
LEAST_PART = 64


def is_cut(cache: Any, tokens: int) -> bool:
    """Return whether a pass is the first of a spread cache, and so long that each rank has a part.

    Args:
        cache: the cache of the pass, or None.
        tokens: the number of tokens of the pass.
    """
    return (
        isinstance(cache, ShardedCache)
        and cache.get_seq_length() == 0
        and tokens >= LEAST_PART * cache.ranks.size
    )


def install(family: Any, model: nn.Module) -> list[Any]:
    """Let a hook begin the passes of a model, before its tokens are cut into parts.

    A mask function could not change the tokens of a model.
    """
    hook = partial(_begin, family, positional_names(model))
    return [model.register_forward_pre_hook(hook, with_kwargs=True)]


@untraced
def _begin(
    family: Any, names: tuple[str, ...], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:
    """Begin a pass: replace the mask by its tokens, and a prompt by this rank's part of it."""
    kwargs, rule, settings = by_name(names, args, kwargs), family.rule(model), current(model)
    ranks, inputs = cast(Ranks, settings.ranks), inputs_of(kwargs)
    option = kwargs.get("output_attentions")
    weights = bool(model.config.output_attentions if option is None else option)
    name = "input_ids" if kwargs.get("input_ids") is not None else "inputs_embeds"
    given = kwargs.get("attention_mask")
    mask, keep = padding_in(given), getattr(given, "keep", None)
    keep = 1 if keep is None else keep
    cache = cache_of(kwargs)

    def describe() -> dict[str, Any]:
        _checks.check_no_context_parallel()
        if inputs is None:
            raise ValueError(
                "input_ids or inputs_embeds must be given in a model patched with group, got None"
            )
        _checks.check_plain("input_ids or inputs_embeds", inputs)
        _checks.check_plain("attention_mask", mask)
        if mask is not None and mask.ndim == 2 and mask.dtype != torch.bool:
            checked_attention_mask(mask)
        if weights:
            raise ValueError(
                "output_attentions must be False in a model patched with group, got True"
            )
        if cache is not None and settings.layout != "contiguous":
            raise ValueError(
                f"layout must be 'contiguous' with {CACHE}, which cuts the prompt into runs, got "
                f"{settings.layout!r}"
            )
        if cache is not None and not isinstance(cache, ShardedCache):
            raise ValueError(
                f"{CACHE} must be a ShardedCache, or None, in a model patched with group, got "
                f"{type(cache).__name__}: generate(..., {CACHE}=ntk_alibi.ShardedCache(group))"
            )
        if cache is None and kwargs.get("use_cache"):
            raise ValueError(
                f"use_cache must be None or False without {CACHE} in a model patched with "
                "group, got True: pass a ShardedCache; guidance_scale of generate() cannot, since "
                "it runs the model once more with a cache of its own"
            )
        if not isinstance(keep, int) and (keep.ndim != 1 or keep.dtype == torch.bool):
            raise ValueError(
                "logits_to_keep must be a number of last tokens, or columns in a tensor of one "
                f"dimension, where a ShardedCache cuts the prompt into parts, got {keep!r}"
            )
        check_cache_in_use(kwargs)
        common = {
            "the model": f"{type(model).__name__} of {cast(Any, model).config.num_hidden_layers} "
            f"layers, training={model.training}",
            "the patch": repr(settings),
            f"whether there is {CACHE}": cache is not None,
        }
        if cache is None:
            if find_layout(inputs) not in (None, settings.layout):
                raise ValueError(
                    f"input_ids must be cut in the layout of the patch, {settings.layout!r}, got "
                    f"a part of shard(batch, group, layout={find_layout(inputs)!r}): let the patch "
                    "cut it, patch.shard(batch)"
                )
            return common
        if not ranks.equals_group(cache.ranks.group):
            raise ValueError(
                f"{CACHE} must be a ShardedCache of the group that the model is patched "
                "with, got one of other ranks"
            )
        shape, cached = tuple(inputs.shape[:2]), cache.get_seq_length()
        seen = real_keys(
            mask, shape[0], cached + shape[1], inputs.device, "attention_mask", shape[1]
        )
        return {
            **common,
            "input_ids": shape,
            f"tokens in {CACHE}": cached,
            "logits_to_keep": keep if isinstance(keep, int) else keep.tolist(),
            "checksum of input_ids": None if inputs.is_floating_point() else _checksum(inputs),
            "checksum of attention_mask": _checksum(seen[:, : cached + shape[1]]),
        }

    ranks.check_agreement(describe)
    batch, tokens = inputs.shape[:2]
    shared: Any
    if cache is None:
        part = mask, (batch, tokens), inputs.device
        shared, whole = own_tokens(ranks, settings.layout, *part)
        # Two runs have other columns between them: all that are no queries count as before.
        end = int(shared.at[-1]) + 1 if settings.layout == "contiguous" else whole.shape[1]
        past = end - tokens
    else:
        past = cache.get_seq_length()
        if past:
            warn_of_older_slopes(settings.scaling)
        end = past + tokens
        whole = real_keys(mask, batch, end, inputs.device, "attention_mask", tokens)[:, :end]
        if is_cut(cache, tokens):
            lengths = [len(x) for x in torch.arange(tokens).tensor_split(ranks.size)]
            cache.hold(lengths)
            past, tokens = sum(lengths[: ranks.rank]), lengths[ranks.rank]
            shared = OwnTokens(ranks, torch.arange(past, past + tokens), bool(whole.all()), cache)
            kwargs[name] = inputs[:, past : past + tokens]
            _share_kept_tokens(model, ranks, lengths, keep)
        else:
            columns = slice(past, past + tokens)
            shared = SpreadKeys(ranks, columns, cache, cache.deal(tokens))
    limits = limits_up_to(whole.shape[1] - 1, settings.mask)
    problem = problem_of(whole, shared.at, rule, limits)
    heads = family.own_heads(family.layers(model)[0], model, rule.heads, settings, {})
    made = ForwardPass(whole, problem, rule, settings, shared, heads=heads)
    return (), {**kwargs, "attention_mask": Tokens(made=made)}


def own_tokens(
    ranks: Ranks,
    layout: Layout,
    mask: torch.Tensor | None,
    shape: tuple[int, int],
    device: Any,
) -> tuple[OwnTokens, torch.Tensor]:
    """Return the pass of a part of a text on each rank, and the mask of the whole text.

    Args:
        ranks: the processes.
        layout: which tokens each rank holds.
        mask: this rank's attention_mask, (batch, tokens), or None.
        shape: batch and number of this rank's tokens.
        device: the device of the mask.
    """
    batch, tokens = shape

    def describe() -> dict[str, Any]:
        if tokens < 1:
            raise ValueError(
                "input_ids must have at least one token on each rank in a model patched with "
                f"group, got {tokens}"
            )
        if mask is not None and tuple(mask.shape) != shape:
            raise ValueError(
                "attention_mask must be of this rank's part of input_ids, (batch, tokens) = "
                f"{shape}, in a model patched with group, got "
                f"{tuple(mask.shape)}"
            )
        return {"batch": batch, "own tokens": tokens, "own padding": mask is not None}

    every = ranks.agree(describe)
    lengths = [x["own tokens"] for x in every]
    total = sum(lengths)
    columns = list(torch.arange(total).split(lengths))
    if layout != "contiguous":
        columns = [rank_columns(rank, ranks.size, total, layout) for rank in range(ranks.size)]
        expected = [len(x) for x in columns]
        if lengths != expected:
            raise ValueError(
                f"input_ids must be the parts of shard(batch, group, layout={layout!r}), "
                f"{expected} tokens, in a model patched with this layout, got "
                f"{lengths}"
            )
    whole = torch.ones((batch, total), dtype=torch.bool, device=device)
    if any(x["own padding"] for x in every):
        own = torch.ones(shape, dtype=torch.uint8, device=device)
        if mask is not None:
            own = (mask != 0).to(device, torch.uint8)
        whole[:, torch.cat(columns)] = torch.cat(ranks.gather_rows(own, lengths), dim=1).bool()
    plain = layout == "contiguous" and bool(whole.all())
    return OwnTokens(ranks, columns[ranks.rank], plain), whole


def _checksum(integers: torch.Tensor) -> int:
    """Return a checksum, the same for the same integers."""
    return zlib.crc32(_arrays.to_numpy(integers.detach()).tobytes())


def _share_kept_tokens(model: nn.Module, ranks: Ranks, lengths: list[int], keep: Any) -> None:
    """Give all ranks the hidden states that logits are made of, once.

    Args:
        model: the model.
        ranks: the processes.
        lengths: the number of tokens of each.
        keep: the number of last tokens, 0 for one, or their columns.
    """
    kept = torch.arange(sum(lengths))
    kept = kept[-max(keep, 1) :] if isinstance(keep, int) else kept[keep.cpu()]
    ascending, order = kept.sort()
    of_ranks = [x.tolist() for x in torch.arange(sum(lengths)).split(lengths)]
    own = [ascending[torch.isin(ascending, torch.tensor(x))] - x[0] for x in of_ranks]

    def share(_: nn.Module, __: Any, output: Any) -> None:
        hook.remove()
        if output is not None:
            states = output[0][:, own[ranks.rank]].transpose(1, 2)
            every = ranks.gather_rows(states, [len(x) for x in own])
            together = torch.cat(every, dim=2).transpose(1, 2)
            output.last_hidden_state = together[:, order.argsort()].contiguous()

    hook = model.register_forward_hook(share, always_call=True)
