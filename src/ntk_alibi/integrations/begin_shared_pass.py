"""Start of a patched model's forward pass on several ranks, which share the tokens of one text."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from ntk_alibi import _arrays, _checks
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.distributed.sharding import Layout, find_layout, rank_columns
from ntk_alibi.integrations.arguments import CACHE, cache_of, check_cache_in_use, inputs_of
from ntk_alibi.integrations.caches.sharded import ShardedCache
from ntk_alibi.integrations.forward_pass import ForwardPass, limits_up_to, problem_of, untraced
from ntk_alibi.integrations.making import check_inputs, real_keys, warn_of_older_slopes
from ntk_alibi.integrations.packed_segments import segments_of_rows
from ntk_alibi.integrations.settings import PATCHED, Settings, current, ranks_of
from ntk_alibi.integrations.shared_pass import OwnTokens, SpreadKeys
from ntk_alibi.integrations.tokens import Tokens, padding_in

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


@untraced
def read(
    target: Any, model: Any, names: tuple[str, ...], given: dict[str, Any], said: list[str]
) -> dict[str, Any]:
    """Return the arguments with which a model goes on; the target begins its pass.

    Args:
        target: the patched model.
        model: it, or a model around it.
        names: the names of the model's first arguments.
        given: the arguments of its call, by name.
        said: the names of those that describe segments.
    """
    if model is target:
        return _begin(model, given, said)
    if said:
        cast(Ranks, ranks_of(target)).check_agreement(partial(_one_text_a_row, model, given, said))
    mask, inputs = given.get("attention_mask"), inputs_of(given)
    asked = "logits_to_keep" not in names or getattr(mask, "keep", None) is not None
    if asked or inputs is None or not is_cut(cache_of(given), inputs.shape[1]):
        return given
    # The inner model gives all ranks these hidden states, in place of all of them.
    keep = given.get("logits_to_keep", 0)
    return {**given, "attention_mask": Tokens(padding_in(mask), keep=keep), "logits_to_keep": 0}


def _one_text_a_row(model: nn.Module, given: Mapping[str, Any], said: list[str]) -> dict[str, Any]:
    if said:
        segments_of_rows(type(model).__name__, given, "group", parts=True)
    return {"arguments that say what is one text": said}


def _begin(model: Any, given: dict[str, Any], said: list[str]) -> dict[str, Any]:
    """Begin a pass: replace the mask by its tokens, and a prompt by this rank's part of it."""
    family, settings = getattr(model, PATCHED).family, current(model)
    ranks, rule, inputs = cast(Ranks, settings.ranks), family.rule(model), inputs_of(given)
    cache, keep = cache_of(given), getattr(given.get("attention_mask"), "keep", None)
    keep = 1 if keep is None else keep
    mask = padding_in(given.get("attention_mask"))
    given = {**given, "attention_mask": mask}

    def describe() -> dict[str, Any]:
        _checks.check_no_context_parallel()
        if inputs is None:
            raise ValueError(
                "input_ids or inputs_embeds must be given in a model patched with group, got None"
            )
        check_inputs(given, devices=True)
        segments = _one_text_a_row(model, given, said)
        weights = given.get("output_attentions")
        if model.config.output_attentions if weights is None else weights:
            raise ValueError(
                "output_attentions must be False in a model patched with group, got True"
            )
        common = {
            "the model": f"{type(model).__name__} of {model.config.num_hidden_layers} layers, "
            f"training={model.training}",
            "the patch": repr(settings),
            f"whether there is {CACHE}": cache is not None,
            **segments,
        }
        if cache is None:
            return {**common, **_describe_part(given, settings.layout)}
        return {**common, **_describe_whole(given, settings, cache, keep)}

    ranks.check_agreement(describe)
    shared: Any
    if cache is None:
        shared, whole = _own_tokens(ranks, settings.layout, mask, inputs)
    else:
        (batch, tokens), past = inputs.shape[:2], cache.get_seq_length()
        if past:
            warn_of_older_slopes(settings.scaling)
        end = past + tokens
        whole = real_keys(mask, batch, end, inputs.device, "attention_mask", longer=True)[:, :end]
        if is_cut(cache, tokens):
            lengths = [len(x) for x in torch.arange(tokens).tensor_split(ranks.size)]
            own = cache.hold(lengths)
            shared = OwnTokens(ranks, torch.arange(tokens)[own], bool(whole.all()), cache)
            name = "inputs_embeds" if given.get("input_ids") is None else "input_ids"
            given[name] = inputs[:, own]
            _share_kept_tokens(model, ranks, lengths, keep)
        else:
            shared = SpreadKeys(ranks, slice(past, end), cache, cache.deal(tokens))
    limits = limits_up_to(whole.shape[1] - 1, settings.mask)
    problem = problem_of(whole, shared.at, rule, limits)
    heads = family.own_heads(family.layers(model)[0], model, rule.heads, settings, {})
    made = ForwardPass(whole, problem, rule, settings, shared, heads=heads)
    return {**given, "attention_mask": Tokens(made=made)}


def _describe_part(given: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Check a rank's part of a text, and describe what all parts have in common."""
    mask, inputs = given["attention_mask"], inputs_of(given)
    batch, tokens = inputs.shape[:2]
    if given.get("use_cache"):
        raise ValueError(
            f"use_cache must be None or False without {CACHE} in a model patched with group, got "
            "True: pass a ShardedCache; guidance_scale of generate() cannot, since it runs the "
            "model once more with a cache of its own"
        )
    if find_layout(inputs) not in (None, layout):
        raise ValueError(
            f"input_ids must be cut in the layout of the patch, {layout!r}, got a part of "
            f"shard(batch, group, layout={find_layout(inputs)!r}): let the patch cut it, "
            "patch.shard(batch)"
        )
    if tokens < 1:
        raise ValueError(
            "input_ids must have at least one token on each rank in a model patched with group, "
            f"got {tokens}"
        )
    if mask is not None and tuple(mask.shape) != (batch, tokens):
        raise ValueError(
            "attention_mask must be of this rank's part of input_ids, (batch, tokens) = "
            f"{(batch, tokens)}, in a model patched with group, got {tuple(mask.shape)}"
        )
    return {"batch": batch}


def _describe_whole(
    given: Mapping[str, Any], settings: Settings, cache: Any, keep: Any
) -> dict[str, Any]:
    """Check a call with a cache, and describe it: all ranks get the same one."""
    inputs = inputs_of(given)
    if settings.layout != "contiguous":
        raise ValueError(
            f"layout must be 'contiguous' with {CACHE}, which cuts the prompt into runs, got "
            f"{settings.layout!r}"
        )
    if not isinstance(cache, ShardedCache):
        raise ValueError(
            f"{CACHE} must be a ShardedCache, or None, in a model patched with group, got "
            f"{type(cache).__name__}: generate(..., {CACHE}=ntk_alibi.ShardedCache(group))"
        )
    if not isinstance(keep, int) and (keep.ndim != 1 or keep.dtype == torch.bool):
        raise ValueError(
            "logits_to_keep must be a number of last tokens, or columns in a tensor of one "
            f"dimension, where a ShardedCache cuts the prompt into parts, got {keep!r}"
        )
    check_cache_in_use(given)
    if not cast(Ranks, settings.ranks).equals_group(cache.ranks.group):
        raise ValueError(
            f"{CACHE} must be a ShardedCache of the group that the model is patched with, got one "
            "of other ranks"
        )
    (batch, tokens), cached = inputs.shape[:2], cache.get_seq_length()
    mask, end = given["attention_mask"], cached + tokens
    seen = real_keys(mask, batch, end, inputs.device, "attention_mask", longer=True)
    return {
        "input_ids": (batch, tokens),
        f"tokens in {CACHE}": cached,
        "logits_to_keep": keep if isinstance(keep, int) else keep.tolist(),
        "checksum of input_ids": None if inputs.is_floating_point() else _checksum(inputs),
        "checksum of attention_mask": _checksum(seen[:, :end]),
    }


def _own_tokens(
    ranks: Ranks, layout: Layout, mask: torch.Tensor | None, inputs: torch.Tensor
) -> tuple[OwnTokens, torch.Tensor]:
    """Return the pass of a part of a text on each rank, and the mask of the whole text.

    Args:
        ranks: the processes.
        layout: which tokens each rank holds.
        mask: this rank's attention_mask, (batch, tokens), or None.
        inputs: this rank's tokens, or their embeddings.
    """
    (batch, tokens), device = inputs.shape[:2], inputs.device
    every = ranks.gather(torch.tensor([tokens, mask is not None]))
    lengths = [int(x[0]) for x in every]
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
    if any(x[1] for x in every):
        own = torch.ones((batch, tokens), dtype=torch.uint8, device=device)
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
