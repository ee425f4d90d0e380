"""Start of a patched model's forward pass: read the padding mask and the cache."""

from __future__ import annotations

import functools
import inspect
import warnings
import zlib
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.distributed.sharding import layout_of
from ntk_alibi.integrations import own_bias
from ntk_alibi.integrations.cache_argument import CACHE, cache_of
from ntk_alibi.integrations.caches.sharded import ShardedCache
from ntk_alibi.integrations.caches.window import WindowCache
from ntk_alibi.integrations.forward_pass import ForwardPass, evicts, problem_of, untraced
from ntk_alibi.integrations.passed_through import PackedTexts, Padding
from ntk_alibi.integrations.settings import (
    Settings,
    check_layers,
    check_own_masks,
    current,
    follows_config,
)
from ntk_alibi.integrations.shared_pass import OwnTokens, SpreadKeys, is_cut, own_tokens
from ntk_alibi.masks import EVERYTHING, Mask, checked_attention_mask
from ntk_alibi.scaling import Scaling, scaling_per

#: Arguments of a model's forward that `begin_pass` reads.
INPUTS = ("input_ids", "inputs_embeds", CACHE, "attention_mask")


@untraced
def begin_pass(
    rule_of: Callable[[Any], ModelSlopes],
    check: Callable[[Settings], None],
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[()], dict[str, Any]]:
    """Replace the padding mask by a `ForwardPass`; called before a patched model's forward."""
    kwargs = {**dict(zip(_parameters(cast(Any, type(model))), args, strict=False)), **kwargs}
    inputs = kwargs.get("input_ids")
    inputs = kwargs.get("inputs_embeds") if inputs is None else inputs
    settings = current(model)
    if settings.ranks is not None:
        return (), _shared(rule_of(model), settings, settings.ranks, model, kwargs, inputs)
    _checks.whole_sequences()
    if inputs is None:
        return (), kwargs  # the model itself raises the error
    _checks.plain("input_ids or inputs_embeds", inputs)
    _checks.plain("attention_mask", kwargs.get("attention_mask"))
    padding = _given_mask(kwargs)
    check_padding(padding)
    batch, queries = inputs.shape[:2]
    cache = cache_of(kwargs)
    cache = getattr(cache, "self_attention_cache", cache)  # of T5, beside that of other states
    check_cache_in_use(cache, kwargs.get("use_cache"), queries)
    given = kwargs.get("attention_mask")
    texts = given if isinstance(given, PackedTexts) else None
    past = 0 if cache is None else int(cache.get_seq_length())
    if texts is not None:
        past = texts.keys.shape[1] - queries
        kwargs["use_cache"] = False  # a cache of the model would not know the texts
    capacity = past + queries if cache is None else cache.get_mask_sizes(queries, 0)[0]
    if follows_config(model):
        check_own_masks(settings.traceable)
        check(settings)
    if isinstance(cache, ShardedCache):
        raise ValueError(
            f"{CACHE} must not be a ShardedCache in a model that is patched without group: "
            "patch(model, scaling, group=group)"
        )
    check_layers(settings.scaling, cast(Any, model).config.num_hidden_layers)
    sizes = batch, past, queries
    bounded = isinstance(cache, WindowCache)
    if bounded:
        mask, skipped = _held(model, settings.mask, cache, padding, sizes, inputs.device)
    else:
        mask, skipped = _padding(model, padding, sizes, inputs.device), None
        mask = F.pad(mask, (0, max(0, capacity - mask.shape[1])))
    limited = evicts(settings.mask, past + queries - 1) and not (bounded and queries == 1)
    _warn_of_older_slopes(settings.scaling, past)
    if _wants_weights(model, kwargs):
        settings = replace(settings, attention="eager")
    if _arrays.is_tracing() and settings.attention != "eager":
        raise ValueError(
            "attention must be 'traceable' where torch.export, make_fx or FakeTensorMode trace a "
            f"patched model, got {settings.attention!r}, which reads numbers of the mask: use "
            "patch(model, scaling, attention='traceable')"
        )
    if bounded:
        past = mask.shape[1] - queries
    rule, end = rule_of(model), past + queries
    problem = problem_of(
        mask[:, :end],
        slice(past, end),
        rule,
        settings.mask if limited else EVERYTHING,
        skipped,
        unpadded=padding is None and capacity == end,
        texts=texts,
    )
    own = own_bias.in_force(model, settings.bias) if settings.bias is not None else None
    paged = None if texts is None else texts.cache
    kwargs["attention_mask"] = ForwardPass(mask, problem, rule, settings, own=own, cache=paged)
    return (), kwargs


def check_padding(mask: Any) -> None:
    """Check the numbers of a padding mask (batch, keys) where they can be read at no cost."""
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.dtype == torch.bool:
        return
    if mask.is_cpu and _arrays.has_values(mask):
        checked_attention_mask(mask)


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


def _given_mask(kwargs: dict[str, Any]) -> Any:
    """Return the attention_mask that the caller of a model gave, also by way of generate()."""
    mask = kwargs.get("attention_mask")
    return mask.mask if isinstance(mask, Padding) else mask


def _shared(
    rule: ModelSlopes,
    settings: Settings,
    ranks: Ranks,
    model: nn.Module,
    kwargs: dict[str, Any],
    inputs: Any,
) -> dict[str, Any]:
    """Return the arguments of a pass on several ranks, with a `ForwardPass` as attention_mask."""
    name = "input_ids" if kwargs.get("input_ids") is not None else "inputs_embeds"
    keep = getattr(kwargs.get("attention_mask"), "keep", 1)
    mask = _given_mask(kwargs)
    cache = cache_of(kwargs)

    def describe() -> dict[str, Any]:
        _checks.whole_sequences()
        if inputs is None:
            raise ValueError(
                "input_ids or inputs_embeds must be given in a model patched with group, got None"
            )
        _checks.plain("input_ids or inputs_embeds", inputs)
        _checks.plain("attention_mask", mask)
        check_padding(mask)
        if _wants_weights(model, kwargs):
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
        check_cache_in_use(cache, kwargs.get("use_cache"), inputs.shape[1])
        check_layers(settings.scaling, cast(Any, model).config.num_hidden_layers)
        common = {
            "the model": f"{type(model).__name__} of {cast(Any, model).config.num_hidden_layers} "
            f"layers, training={model.training}",
            "the patch": repr(settings),
            f"whether there is {CACHE}": cache is not None,
        }
        if cache is None:
            if layout_of(inputs) not in (None, settings.layout):
                raise ValueError(
                    f"input_ids must be cut in the layout of the patch, {settings.layout!r}, got "
                    f"a part of shard(batch, group, layout={layout_of(inputs)!r}): let the patch "
                    "cut it, patch.shard(batch)"
                )
            return common
        if not ranks.are_those_of(cache.ranks.group):
            raise ValueError(
                f"{CACHE} must be a ShardedCache of the group that the model is patched "
                "with, got one of other ranks"
            )
        shape, cached = tuple(inputs.shape[:2]), cache.get_seq_length()
        seen = _padding(model, mask, (shape[0], cached, shape[1]), inputs.device)
        return {
            **common,
            "input_ids": shape,
            f"tokens in {CACHE}": cached,
            "logits_to_keep": keep if isinstance(keep, int) else keep.tolist(),
            "checksum of input_ids": None if inputs.is_floating_point() else _checksum(inputs),
            "checksum of attention_mask": _checksum(seen[:, : cached + shape[1]]),
        }

    ranks.in_step(describe)
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
        _warn_of_older_slopes(settings.scaling, past)
        whole = _padding(model, mask, (batch, past, tokens), inputs.device)[:, : past + tokens]
        if is_cut(cache, tokens):
            lengths = [len(x) for x in torch.arange(tokens).tensor_split(ranks.size)]
            cache.hold(lengths)
            past, tokens = sum(lengths[: ranks.rank]), lengths[ranks.rank]
            shared = OwnTokens(ranks, torch.arange(past, past + tokens), bool(whole.all()))
            kwargs[name] = inputs[:, past : past + tokens]
            _share_kept_tokens(model, ranks, lengths, keep)
        else:
            columns = slice(past, past + tokens)
            shared = SpreadKeys(ranks, columns, cache, cache.deal(tokens))
    limits = settings.mask if evicts(settings.mask, whole.shape[1] - 1) else EVERYTHING
    problem = problem_of(whole, shared.at, rule, limits)
    kwargs["attention_mask"] = ForwardPass(whole, problem, rule, settings, shared)
    return kwargs


def _checksum(numbers: torch.Tensor) -> int:
    """Return a checksum of integers, the same for the same numbers."""
    return zlib.crc32(_arrays.to_numpy(numbers.detach()).tobytes())


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


@functools.cache
def _parameters(model_class: Hashable) -> tuple[str, ...]:
    return tuple(inspect.signature(cast(Any, model_class).forward).parameters)[1:]


def _padding(
    model: nn.Module, mask: Any, sizes: tuple[int, int, int], device: torch.device
) -> torch.Tensor:
    """Return a model's attention_mask as (batch, keys), True for real keys.

    Causal masks of four dimensions, which generate() makes for a static cache, are read, too.
    """
    batch, past, queries = sizes
    seen = past + queries
    if mask is None:
        return torch.ones((batch, seen), dtype=torch.bool, device=device)
    if mask.ndim == 4 and mask.shape[:3] == (batch, 1, queries) and mask.shape[3] >= seen:
        seen_keys = mask if mask.dtype == torch.bool else mask == 0
        padding: torch.Tensor = seen_keys[:, 0, -1]
        columns = torch.arange(mask.shape[3], device=mask.device)
        causal = EVERYTHING.visible(columns[past:seen], columns)
        if torch.equal(seen_keys, padding[:, None, None, :] & causal):
            return padding.to(device)
    if mask.ndim != 2 or mask.shape[0] != batch or mask.shape[1] < seen:
        raise ValueError(
            f"attention_mask must have shape (batch, keys) = ({batch}, {seen}) for a patched "
            f"{type(model).__name__}, or be the causal mask of such padding, got "
            f"{'another mask of shape ' * (mask.ndim == 4)}{tuple(mask.shape)}"
        )
    return cast(torch.Tensor, mask != 0).to(device)


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
    else:
        mask = _padding(model, padding, sizes, device)[:, :total]
        real = mask.sum(dim=1)
        if _rows_with_holes(mask, real):
            raise ValueError(
                "attention_mask must have padding on the left only with a WindowCache, got 0 "
                f"behind 1 in rows {_rows_with_holes(mask, real)}"
            )
        shared.padding = None if bool((real == total).all()) else total - real
        mask = mask[:, total - keys :]
    skipped = (real - keys).clamp(min=0)
    return mask, skipped if bool(skipped.any()) else None


def _rows_with_holes(mask: torch.Tensor, real: torch.Tensor) -> list[int]:
    """Return the rows whose real tokens are not the last columns."""
    length = mask.shape[1]
    expected = torch.arange(length, device=mask.device) >= length - real[:, None]
    holes: list[int] = (mask != expected).any(dim=1).nonzero().flatten().tolist()
    return holes


def _warn_of_older_slopes(scaling: Scaling | None, past: int) -> None:
    if past and scaling_per(scaling) == "sequence":
        warnings.warn(
            f"{scaling!r} chooses its slopes by the length of the whole text, but the cached keys "
            "were computed under those of a shorter one; per='query' agrees with its own cache",
            stacklevel=2,
        )


def _wants_weights(model: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether a call asks for attention weights."""
    option = kwargs.get("output_attentions")
    return bool(model.config.output_attentions if option is None else option)
