"""MPT: the patch of its bias and attention.

transformers builds MPT's bias for `max_seq_len` columns, for texts of any length, and ignores the
`alibi_bias_max` of its configuration. Patched layers compute the bias of their pass:
texts may be longer, and alibi_bias_max has an effect. Distances are between columns, so padding
between real tokens counts, as in transformers.
"""

from __future__ import annotations

from typing import Any

import torch

from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.arguments import CACHE, cache_of
from ntk_alibi.integrations.classes import stock_class
from ntk_alibi.integrations.family import check_states, of_transformers, register
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.tokens import Tokens, refuse


class _NoBias(Tokens):
    """What a layer without a patch gets in place of a bias: it raises with what this is."""

    shape: Any = (1, 1, 1)
    size: Any = refuse


def _no_tensor(*_: Any, **__: Any) -> Tokens:
    """Replace MptModel.build_mpt_alibi_tensor."""
    return _NoBias()


def _forward(
    attend: Any,
    layer: Any,
    hidden_states: torch.Tensor,
    position_bias: Any,
    attention_mask: Any = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace MptAttention.forward."""
    check_states(hidden_states)
    packed = layer.Wqkv(hidden_states)
    if layer.clip_qkv:
        packed = packed.clamp(min=-layer.clip_qkv, max=layer.clip_qkv)
    heads = packed.unflatten(2, (3, -1, layer.head_dim))
    query, key, value = heads.permute(2, 0, 3, 1, 4)
    context, weights = attend(
        query,
        key,
        value,
        mask=attention_mask,
        cache=cache_of(others),
        scale=layer.softmax_scale,
        dropout=layer.attn_dropout_p if layer.training else 0.0,
    )
    return layer.out_proj(context.transpose(1, 2).flatten(2)), weights


def _check(model: Any, _: Settings) -> None:
    if not model.config.attn_config.alibi:
        raise ValueError(
            "model must be an MPT with ALiBi, got one whose attn_config.alibi is False"
        )
    for block in model.blocks:
        # transformers' loading would put parts that are divided twice in another order.
        packed = getattr(block.attn.Wqkv, "weight", None)  # quantized layers may have none
        placements = getattr(packed, "placements", None) or ()
        if sum(not x.is_replicate() for x in placements) > 1:
            raise ValueError(
                "model must be divided by tensor parallelism or by FSDP, not both, where its "
                "queries, keys and values are packed in one weight, got "
                f"{tuple(placements)} for Wqkv"
            )


def _with_its_slopes(model: Any, *args: Any, **others: Any) -> torch.Tensor:
    """Replace MptModel.build_mpt_alibi_tensor, which is not told the config's alibi_bias_max."""
    most = model.config.attn_config.alibi_bias_max
    bias: torch.Tensor = stock_class(model).build_mpt_alibi_tensor(
        model, *args[:2], alibi_bias_max=most, **others
    )
    return bias


register(
    of_transformers(
        while_compared=lambda model: [(model, "build_mpt_alibi_tensor", _with_its_slopes)],
        name="MPT",
        model="MptModel",
        attention="MptAttention",
        config="MptConfig",
        parameters=("hidden_states", "position_bias", CACHE, "attention_mask"),
        layers=lambda model: [block.attn for block in model.blocks],
        forward=_forward,
        slopes=lambda model: ModelSlopes.for_mpt(
            model.num_heads, model.config.attn_config.alibi_bias_max
        ),
        replacements=lambda model: [(model, "build_mpt_alibi_tensor", _no_tensor)],
        check=_check,
        decoder=True,
        masks_pairs=True,
        masks_hidden=True,
    )
)
