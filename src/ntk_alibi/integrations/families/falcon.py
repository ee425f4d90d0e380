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
from ntk_alibi.distributed.exchange import sum_gradient_over_ranks
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.integrations.family import check_states, mesh_of, of_transformers, register
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.tensor_parallel import OWN_OUTPUT, WHOLE


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
    query, key, value = (x.transpose(1, 2) for x in _split(layer, hidden_states))
    context, weights = attend(
        query,
        key,
        value,
        mask=attention_mask,
        cache=layer_past,
        scale=layer.inv_norm_factor,
        dropout=layer.attention_dropout.p if layer.training else 0.0,
        weights=output_attentions,
    )
    return layer.dense(context.transpose(1, 2).flatten(2)), weights


def _split(attention: Any, hidden_states: torch.Tensor) -> Any:
    """Return queries, keys and values of this rank's heads, each (batch, length, heads, head_dim).

    With one head of keys for all heads of queries, every rank computes all of them.
    """
    fused = attention.query_key_value(hidden_states)
    if attention.new_decoder_architecture:
        return attention._split_heads(fused)
    if not attention.multi_query:
        return fused.unflatten(2, (-1, 3, attention.head_dim)).unbind(3)
    mesh = mesh_of(attention.dense)
    if mesh is None:
        return attention._split_heads(fused)
    if fused.requires_grad:  # each rank has the gradients of its heads only
        fused = sum_gradient_over_ranks(Ranks.from_group(mesh), fused)
    query, key, value = attention._split_heads(fused)
    own = attention.num_heads // mesh.size()
    begin = mesh.get_local_rank() * own
    return query[:, :, begin : begin + own], key, value


def _tensor_parallel(config: Any) -> dict[str, str]:
    """Return how ranks divide heads, or groups of heads; a single head of keys is not divided."""
    one = config.multi_query and not config.new_decoder_architecture
    return {
        "transformer.h.*.self_attention.query_key_value": WHOLE if one else "colwise",
        "transformer.h.*.self_attention.dense": "rowwise",
        "transformer.h.*.mlp.dense_h_to_4h": "colwise",
        "transformer.h.*.mlp.dense_4h_to_h": OWN_OUTPUT,
    }


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
        output="dense",
        decoder=True,
        tensor_parallel=_tensor_parallel,
    )
)
