"""Falcon with ALiBi: the patch of its bias and attention.

transformers adds Falcon's bias twice in its eager form (once in the mask, once to the scores), and
rounds slopes and bias to bfloat16 in every dtype. A patched model builds no bias (`use_alibi`); its
layers compute it once, in float32. As in transformers' SDPA form, the bias
is divided by sqrt(head_dim), like the products.
"""

from __future__ import annotations

from typing import Any

import torch

from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.family import check_states, dropped, of_transformers, register
from ntk_alibi.integrations.settings import Settings


def _forward(
    attend: Any,
    layer: Any,
    hidden_states: torch.Tensor,
    alibi: None,
    attention_mask: Any,
    position_ids: Any = None,
    layer_past: Any = None,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace FalconAttention.forward."""
    check_states(hidden_states)
    attend.check_heads()  # before they are split by the count of heads
    query, key, value = (
        x.transpose(1, 2) for x in layer._split_heads(layer.query_key_value(hidden_states))
    )
    context, weights = attend(
        query,
        key,
        value,
        mask=attention_mask,
        cache=layer_past,
        scale=layer.inv_norm_factor,
        dropout=dropped(layer.attention_dropout),
        weights=output_attentions,
    )
    return layer.dense(context.transpose(1, 2).flatten(2)), weights


def _check(model: Any, _: Settings) -> None:
    if not model.config.alibi:
        raise ValueError("model must be a Falcon with ALiBi, got one with rotary embeddings")


register(
    of_transformers(
        name="Falcon",
        model="FalconModel",
        attention="FalconAttention",
        config="FalconConfig",
        parameters=("hidden_states", "alibi", "attention_mask", "layer_past"),
        layers=lambda model: [block.self_attention for block in model.h],
        forward=_forward,
        slopes=lambda model: ModelSlopes.for_falcon(
            model.num_heads, model.embed_dim // model.num_heads
        ),
        replacements=lambda model: [(model, "use_alibi", False)],
        check=_check,
        decoder=True,
    )
)
