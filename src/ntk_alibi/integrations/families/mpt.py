"""MPT: the patch of its bias and attention.

transformers builds MPT's bias for `max_seq_len` columns, whatever the text, and ignores the
`alibi_bias_max` of its configuration. Patched layers compute their bias from the `ForwardPass`:
texts may be longer, and alibi_bias_max has an effect. Distances are between columns, so padding
between real tokens counts, as in transformers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from transformers.models.mpt.modeling_mpt import MptAttention, MptModel

from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.cache_argument import CACHE, cache_of
from ntk_alibi.integrations.family import Replacement
from ntk_alibi.integrations.layer_attention import AttentionOf
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.tensor_parallel import PACKED
from ntk_alibi.integrations.transformers_family import TransformersFamily


def _slopes(model: Any) -> ModelSlopes:
    bias_max = model.config.attn_config.alibi_bias_max
    return ModelSlopes.of_mpt(model.num_heads, bias_max)


def _layers(model: Any) -> list[nn.Module]:
    return [block.attn for block in model.blocks]


def _traceable(model: Any) -> list[Replacement]:
    return [(model, "build_mpt_alibi_tensor", _no_tensor)]


def _no_tensor(*_: Any, **__: Any) -> None:
    """Replace MptModel.build_mpt_alibi_tensor."""


def _forward(
    attention_of: AttentionOf,
    layer: MptAttention,
    hidden_states: torch.Tensor,
    position_bias: Any,
    attention_mask: Any = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace MptAttention.forward."""
    output = layer.out_proj
    attend = attention_of(layer, attention_mask, layer.n_heads, hidden_states, output)
    packed = layer.Wqkv(hidden_states)
    if layer.clip_qkv:
        packed = packed.clamp(min=-layer.clip_qkv, max=layer.clip_qkv)
    heads = packed.unflatten(2, (3, -1, layer.head_dim))  # those of this rank
    query, key, value = heads.permute(2, 0, 3, 1, 4)
    dropout = layer.attn_dropout_p if layer.training else 0.0
    scale = cast(float, layer.softmax_scale)
    context, weights = attend(query, key, value, cache_of(others), scale, dropout)
    return output(context.transpose(1, 2).flatten(2)), weights


def _tensor_parallel(_: Any) -> dict[str, str]:
    """Divide MPT's heads, whose weights are packed as queries, keys and values of all heads."""
    return {
        "transformer.blocks.*.attn.Wqkv": PACKED,
        "transformer.blocks.*.attn.out_proj": "rowwise",
        "transformer.blocks.*.ffn.up_proj": "colwise",
        "transformer.blocks.*.ffn.down_proj": "rowwise",
    }


def _check(model: Any, _: Settings) -> None:
    if not model.config.attn_config.alibi:
        raise ValueError(
            "model must be an MPT with ALiBi, got one whose attn_config.alibi is False"
        )
    for block in model.blocks:
        # transformers' loading would put parts that are divided twice in another order.
        placements = getattr(block.attn.Wqkv.weight, "placements", None) or ()
        if sum(not x.is_replicate() for x in placements) > 1:
            raise ValueError(
                "model must be divided by tensor parallelism or by FSDP, not both, where its "
                "queries, keys and values are packed in one weight, got "
                f"{tuple(placements)} for Wqkv"
            )


FAMILY = TransformersFamily(
    name="MPT",
    model=MptModel,
    attention=MptAttention,
    parameters=("hidden_states", "position_bias", CACHE, "attention_mask"),
    slopes=_slopes,
    layers=_layers,
    forward=_forward,
    tensor_parallel=_tensor_parallel,
    traceable=_traceable,
    check=_check,
    masks_hidden=True,
)
