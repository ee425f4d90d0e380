"""The arguments of a model's forward: their names, and what a patched model refuses."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from packaging.version import Version
from torch import nn

from ntk_alibi._torch_state import has_values, is_tracing
from ntk_alibi.integrations.caller_masks import PLAIN, check_shape, check_tensor, shown
from ntk_alibi.integrations.classes import stock_class
from ntk_alibi.integrations.transformers_versions import transformers_version
from ntk_alibi.masks import checked_attention_mask

#: The names of the cache in the installed version, the current one first. Before 5.24 `cache` was
#: the paged cache of continuous batching alone.
CACHES = (
    ("cache", "past_key_values")
    if Version(transformers_version() or "0") >= Version("5.24")
    else ("past_key_values",)
)

#: The name by which models of the installed version take a cache without a warning.
CACHE = CACHES[0]


#: The arguments of a model that are masks.
MASKS = "attention_mask", "encoder_attention_mask"

#: Arguments that describe several texts in a row: collators without padding, continuous batching.
PACKED = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
    "read_index",
    "write_index",
    "block_table",
)

INSTEAD = (
    "a patched model reads one text a row: na.attention(segment_ids=...) in a model of your own, "
    "or vLLM, reads packed rows"
)


def positional_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the arguments that a model's forward takes by position, too.

    Hooks keep them, since what torch traces cannot ask for them.
    """
    parameters = list(inspect.signature(stock_class(model).forward).parameters.values())[1:]
    return tuple([x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD])


def inputs_of(arguments: Mapping[str, Any]) -> Any:
    """Return the input_ids or inputs_embeds among a model's arguments, or None."""
    ids = arguments.get("input_ids")
    return arguments.get("inputs_embeds") if ids is None else ids


def cache_of(arguments: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a model or layer, or None.

    A paged cache, which has no length of its own, is none.
    """
    for name in CACHES:
        cache = arguments.get(name)
        if cache is not None and hasattr(cache, "get_seq_length"):
            return cache
    return None


def may_repeat_cache(arguments: Mapping[str, Any]) -> bool:
    """Return whether a call may be the second pass of generate() with a cache that it leaves.

    generate() passes the whole text then, one token more than the cache holds, and the cache would
    hold it twice. Other calls may have as many tokens, and read a cache without a wish to keep it.
    """
    cache, inputs = cache_of(arguments), inputs_of(arguments)
    if cache is None or inputs is None:
        return False
    repeats = 0 < int(cache.get_seq_length()) == int(inputs.shape[1]) - 1
    mask = arguments.get("attention_mask")
    if repeats and getattr(mask, "shape", ())[1:] == inputs.shape[1:2]:
        _refuse_repeated()  # a mask of the text alone, which has no columns for what is cached
    return repeats


def check_not_repeated(key: torch.Tensor, cache: Any, index: int) -> None:
    """Refuse a first layer's keys of the tokens that a cache holds: no position is in them."""
    if not hasattr(cache, "layers"):  # whose keys nobody can compare
        _refuse_repeated()
    past = int(cache.get_seq_length(index))
    held = cache.layers[index].keys[:, :, :past]
    if held.shape == key[:, :, :past].shape:
        apart = (held - key[:, :, :past]).abs().amax()
        if bool(apart <= 0.02 * held.abs().amax()):  # a cache may be rounded to eight bits
            _refuse_repeated()


def _refuse_repeated() -> NoReturn:
    raise ValueError(
        f"use_cache must be True with {CACHE} in generate(), got False, as the config of an MPT "
        "has it: generate(..., use_cache=True)"
    )


def check_arguments(patch: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a patched model of transformers does not read as they are meant."""
    _check_inputs(arguments)
    mask: Any = arguments.get("attention_mask")
    cache, inputs = cache_of(arguments), inputs_of(arguments)
    for name in ("cache", "past_key_values"):
        value = arguments.get(name)
        if value is not None and not hasattr(value, "get_seq_length"):
            got = type(value).__name__
            raise ValueError(f"{name} must have get_seq_length, got {got}: {INSTEAD}")
    for name in PACKED:
        if arguments.get(name) is not None:
            raise ValueError(
                f"{name} must be None, got a {type(arguments[name]).__name__}: {INSTEAD}"
            )
    if getattr(mask, "ndim", 2) == 4 and not patch.family.masks_pairs:
        advice = "na.attention(mask=...) in a model of your own takes masks of pairs"
        if getattr(cache, "is_compileable", False):
            advice = "take another cache than a static one, for which generate() makes such masks"
        raise ValueError(
            "attention_mask must have shape (batch, keys) for a patched "
            f"{patch.family.name}, as transformers' own takes it, got {tuple(mask.shape)}: {advice}"
        )
    if inputs is None:
        return
    if arguments.get("position_ids") is not None and patch.causal:
        _check_positions(arguments["position_ids"], mask, inputs.shape[1])
    if patch.traceable and mask is not None and not is_tracing():
        (rows, tokens), past, capacity = inputs.shape[:2], 0, 0
        if cache is not None:
            past, capacity = int(cache.get_seq_length()), int(cache.get_mask_sizes(tokens, 0)[0])
        sizes = rows, patch.rule.heads, tokens, past + tokens
        check_shape(mask, "attention_mask", sizes, capacity)


def _check_inputs(arguments: Mapping[str, Any]) -> None:
    """Check the tokens and the masks of a patched model; masks on devices are not read."""
    for name in ("input_ids", "inputs_embeds", *MASKS):
        if type(arguments.get(name)) not in PLAIN:  # no call at each token
            check_tensor(name, arguments[name])
    for name in MASKS:
        mask = arguments.get(name)
        if mask is None or mask.ndim != 2 or mask.dtype == torch.bool or not has_values(mask):
            continue
        if mask.is_cpu and not bool(((mask == 0) | (mask == 1)).all()):
            checked_attention_mask(mask, name)  # its error names what it must be


def _check_positions(value: Any, mask: Any, tokens: int) -> None:
    """Refuse position_ids of several texts in a row, of which no real token may go back.

    Padding may have any position, and a token may skip some, where there is padding.
    """
    positions = torch.as_tensor(value)
    if not positions.is_cpu or not has_values(positions) or positions.shape[-1] != tokens:
        return
    positions = torch.atleast_2d(positions)
    wrong = positions.diff(dim=-1) != 1
    if mask is not None and getattr(mask, "ndim", 0) == 2 and mask.shape[1] >= tokens:
        if not mask.is_cpu or not has_values(mask):
            return
        real = mask[:, -tokens:] != 0
        behind = torch.where(real, positions, positions.min() - 1).cummax(dim=-1).values[:, :-1]
        wrong = wrong & real[:, 1:] & (positions[:, 1:] <= behind)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        before, after = positions[row, column : column + 2].tolist()
        raise ValueError(
            f"position_ids must rise by one from real token to real token, got {after} after "
            f"{before} in row {row}: {INSTEAD}"
        )


def without_booleans(mask: Any, patch: Any) -> Any:
    """Return the mask with which a traceable model goes on.

    Layers of a family may take booleans of transformers' masks for hidden keys.
    """
    if mask is None or mask.ndim != 4 or not patch.family.masks_hidden:
        return mask
    if mask.dtype != torch.bool and not has_values(mask):
        return mask
    zeros = torch.zeros(mask.shape, device=mask.device)
    return zeros.masked_fill(~shown(mask, "attention_mask"), torch.finfo(torch.float32).min)
