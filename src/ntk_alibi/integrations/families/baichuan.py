"""Baichuan-13B and Baichuan2-13B: the patch of their attention, in remote code.

Their code keeps a mask of heads x model_max_length x model_max_length entries with the bias, made
in the first pass of any length, and a larger one at every token beyond. In a patched model
that mask is the padding of keys, (batch, keys), which the layers take.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ntk_alibi.integrations.attend import Attend
from ntk_alibi.integrations.classes import stock_class
from ntk_alibi.integrations.family import Family, register
from ntk_alibi.integrations.forwards import running_tokens


def _matches(module: nn.Module) -> bool:
    """Return whether a module is a 13B model; 7B models of that name have rotary positions."""
    return type(module).__name__ == "BaichuanModel" and hasattr(module, "get_alibi_mask")


def _forward(
    attend: Attend,
    layer: Any,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    past_key_value: tuple[torch.Tensor, torch.Tensor] | None = None,
    output_attentions: bool = False,
    use_cache: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, tuple[torch.Tensor, torch.Tensor] | None]:
    """Replace BaichuanAttention.forward."""
    packed = layer.W_pack(hidden_states).unflatten(2, (3, -1, layer.head_dim))
    query, key, value = packed.permute(2, 0, 3, 1, 4)
    if past_key_value is not None:
        key = torch.cat((past_key_value[0], key), dim=2)
        value = torch.cat((past_key_value[1], value), dim=2)
    output, weights = attend(query, key, value, mask=attention_mask, weights=output_attentions)
    cache = (key, value) if use_cache else None
    return layer.o_proj(output.transpose(1, 2).flatten(2)), weights, cache


def _model_forward(model: Any, **given: Any) -> Any:
    """Call BaichuanModel.forward, which would add its attention_mask to a mask of all pairs."""
    mask, cache = given.pop("attention_mask", None), given.get("past_key_values")
    if mask is not None and (mask.ndim != 2 or int(mask.max()) > 1):
        raise ValueError(
            "attention_mask must be of 0 and 1, (batch, keys), for a patched Baichuan, got shape "
            f"{tuple(mask.shape)} with values up to {mask.max():g}"
        )
    if cache is not None and not isinstance(cache, (tuple, list)):
        raise TypeError(
            "past_key_values must be a tuple of each layer's keys and values for Baichuan, whose "
            f"own code takes no other cache, got {type(cache).__name__}: generate() makes tuples "
            "with transformers up to 4.53, and with any version needs none by use_cache=False"
        )
    model.alibi_mask = None  # in training the model keeps it for the next batch of that length
    try:
        return stock_class(model).forward(model, **given)
    finally:
        model.alibi_mask = None


def _padding(model: Any, tensor: torch.Tensor, seq_length_with_past: int) -> torch.Tensor | None:
    """Replace BaichuanModel.get_alibi_mask."""
    del model, tensor, seq_length_with_past
    mask: torch.Tensor | None = running_tokens().mask
    return mask


def _release(model: Any) -> None:
    """Free the mask of all pairs, which the model makes again in its first pass without a patch."""
    model.alibi_mask = None
    if hasattr(model, "future_mask"):
        del model.future_mask
        model.first_run = True


def _mask_of_length(model: Any, tensor: torch.Tensor, seq_length_with_past: int) -> torch.Tensor:
    """Return what get_alibi_mask does in training: a mask of this length, which is not kept."""
    training, model.training = model.training, True
    try:
        mask: torch.Tensor = stock_class(model).get_alibi_mask(model, tensor, seq_length_with_past)
    finally:
        model.training = training
    return mask


register(
    Family(
        name="Baichuan-13B",
        matches=_matches,
        layers=lambda model: [layer.self_attn for layer in model.layers],
        forward=_forward,
        slopes=lambda model: model.n_head,
        replacements=lambda model: [(model, "get_alibi_mask", _padding)],
        model_forward=_model_forward,
        release=_release,
        while_compared=lambda model: [(model, "get_alibi_mask", _mask_of_length)],
        train_length=lambda model: model.config.model_max_length,
    )
)
