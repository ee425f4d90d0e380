"""The arguments of a model's forward: by name, its tokens, and its padding."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from ntk_alibi import _arrays
from ntk_alibi.integrations.passed_through import Padding
from ntk_alibi.masks import EVERYTHING, checked_attention_mask


def positional_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the arguments that a model's forward takes by position, too.

    Hooks keep them, since what torch traces cannot ask for them.
    """
    parameters = list(inspect.signature(type(model).forward).parameters.values())[1:]
    return tuple(x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD)


def by_name(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    """Return all arguments of a call by name, those by position by `positional_names`."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def tokens_of(arguments: Mapping[str, Any]) -> Any:
    """Return the input_ids or inputs_embeds among a model's arguments, or None."""
    ids = arguments.get("input_ids")
    return arguments.get("inputs_embeds") if ids is None else ids


def given_mask(mask: Any) -> Any:
    """Return the mask that the caller of a model gave, also by way of generate()."""
    return mask.mask if isinstance(mask, Padding) else mask


def check_padding(mask: Any) -> None:
    """Check the numbers of a padding mask (batch, keys) where they can be read at no cost."""
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.dtype == torch.bool:
        return
    if mask.is_cpu and _arrays.has_values(mask):
        checked_attention_mask(mask)


def padding_of(
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
