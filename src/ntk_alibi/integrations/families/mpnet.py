"""MPNet, whose best-known model is all-mpnet-base-v2, with the bias of `ntk_alibi.T5`.

transformers makes the bias as a matrix of all pairs for each row of the batch. It has 32 buckets,
also where its configuration has more: a longer table is not read beyond them.
"""

from __future__ import annotations

from typing import Any

import torch

from ntk_alibi.biases.t5 import T5
from ntk_alibi.integrations.biases import Table
from ntk_alibi.integrations.family import dropped, of_transformers, register

#: The number of buckets.
BUCKETS = 32


def _bias(rows: Any) -> T5:
    return T5(rows.T)


def _no_matrix(_: Any, __: torch.Tensor) -> None:
    """Replace MPNetEncoder.compute_position_bias."""


def _mask_as_given(_: Any, attention_mask: Any, *__: Any, **___: Any) -> Any:
    """Replace get_extended_attention_mask, by which older versions make a mask to add."""
    return attention_mask


def _forward(
    attend: Any,
    layer: Any,
    hidden_states: torch.Tensor,
    attention_mask: Any = None,
    position_bias: None = None,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Replace MPNetSelfAttention.forward."""
    query, key, value = (
        product(hidden_states).unflatten(2, (-1, layer.attention_head_size)).transpose(1, 2)
        for product in (layer.q, layer.k, layer.v)
    )
    dropout = dropped(layer.dropout)
    context, weights = attend(
        query, key, value, mask=attention_mask, dropout=dropout, weights=output_attentions
    )
    output = layer.o(context.transpose(1, 2).flatten(2))
    return (output, weights) if output_attentions else (output,)


def _check(model: Any, _: Any) -> None:
    count = model.encoder.relative_attention_bias.num_embeddings
    if count < BUCKETS:
        raise ValueError(
            f"model must have {BUCKETS} buckets, as transformers' MPNet reads them, got {count}"
        )


register(
    of_transformers(
        name="MPNet",
        model="MPNetModel",
        attention="MPNetSelfAttention",
        config="MPNetConfig",
        parameters=("hidden_states", "attention_mask", "position_bias", "output_attentions"),
        layers=lambda model: [layer.attention.attn for layer in model.encoder.layer],
        forward=_forward,
        slopes=lambda model: model.encoder.n_heads,
        causal=False,
        masks_pairs=True,
        replacements=lambda model: [
            (model.encoder, "compute_position_bias", _no_matrix),
            (model, "get_extended_attention_mask", _mask_as_given),
        ],
        check=_check,
        tables=lambda model: [Table(model.encoder, BUCKETS, _bias)] * len(model.encoder.layer),
    )
)
