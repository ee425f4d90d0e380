"""Falcon with ALiBi: the patch of its bias and attention.

transformers adds Falcon's bias twice in its eager form (once in the mask, once to the scores), and
rounds slopes and bias to bfloat16 in every dtype. A patched model builds no bias (`use_alibi`); its
layers compute it once, in float32, from the `ForwardPass`. As in transformers' SDPA form, the bias
is divided by sqrt(head_dim), like the products. compat="transformers" repeats that form's rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.models.falcon.modeling_falcon import FalconAttention, FalconLinear, FalconModel

from ntk_alibi.integrations import traceable
from ntk_alibi.integrations.begin_pass import INPUTS
from ntk_alibi.integrations.family import Family, Replacement
from ntk_alibi.integrations.forms import attend
from ntk_alibi.integrations.forward_pass import ForwardPass, require_pass
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.slope_rule import SlopeRule


def _rule(model: Any) -> SlopeRule:
    return SlopeRule(model.num_heads, slope_divisor=math.sqrt(model.embed_dim // model.num_heads))


def _replacements(model: Any) -> list[Replacement]:
    layers = [(block.self_attention, "forward", _attention_forward) for block in model.h]
    return [(model, "use_alibi", False), *layers]


def _traceable(model: Any) -> list[Replacement]:
    layers = [(block.self_attention, "forward", _traceable_forward) for block in model.h]
    return [(model, "use_alibi", False), *layers]


def _attention_forward(
    attention: FalconAttention,
    hidden_states: torch.Tensor,
    alibi: None,
    attention_mask: ForwardPass,
    position_ids: Any = None,
    layer_past: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace FalconAttention.forward."""
    forward_pass = require_pass(attention_mask, attention, attention.num_heads, hidden_states)
    return _attend(attention, hidden_states, layer_past, partial(attend, forward_pass))


def _traceable_forward(
    attention: FalconAttention,
    hidden_states: torch.Tensor,
    alibi: None,
    attention_mask: Any,
    position_ids: Any = None,
    layer_past: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace FalconAttention.forward for attention="traceable"."""
    traced = traceable.of_layer(attention, attention_mask, attention.num_heads, hidden_states)
    return _attend(attention, hidden_states, layer_past, traced)


def _attend(
    attention: FalconAttention,
    hidden_states: torch.Tensor,
    layer_past: Any,
    attend: Callable[..., tuple[torch.Tensor, torch.Tensor | None]],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute FalconAttention.forward with attention of its queries, keys and values."""
    split = attention._split_heads(attention.query_key_value(hidden_states))
    query, key, value = (x.transpose(1, 2) for x in split)
    dropout = attention.attention_dropout.p if attention.training else 0.0
    cache = layer_past, attention.layer_idx
    context, weights = attend(query, key, value, cache, attention.inv_norm_factor, dropout)
    return attention.dense(context.transpose(1, 2).flatten(2)), weights


def _check(model: Any, _: Settings) -> None:
    if not model.config.alibi:
        raise ValueError("model must be a Falcon with ALiBi, got one with rotary embeddings")


FAMILY = Family(
    name="Falcon",
    model=FalconModel,
    attention=FalconAttention,
    expected={
        (FalconAttention, "forward"): ("hidden_states", "alibi", "attention_mask", "layer_past"),
        (FalconModel, "forward"): INPUTS,
    },
    rule=_rule,
    replacements=_replacements,
    traceable=_traceable,
    check=_check,
    rounds=True,
    linear=(nn.Linear, FalconLinear),
)
