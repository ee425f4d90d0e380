"""MPT: the patch of its bias and attention.

transformers builds MPT's bias for `max_seq_len` columns, whatever the text, and ignores the
`alibi_bias_max` of its configuration. Patched layers compute their bias from the `ForwardPass`:
texts may be longer, and alibi_bias_max has an effect. Distances are between columns, so padding
between real tokens counts, as in transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from transformers.models.mpt.modeling_mpt import MptAttention, MptModel

from ntk_alibi.integrations import checks, traceable
from ntk_alibi.integrations.begin_pass import INPUTS
from ntk_alibi.integrations.family import Family, Replacement
from ntk_alibi.integrations.forms import attend
from ntk_alibi.integrations.forward_pass import ForwardPass, require_pass
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.slope_rule import SlopeRule
from ntk_alibi.integrations.tensor_parallel import PACKED


def _rule(model: Any) -> SlopeRule:
    steepness = model.config.attn_config.alibi_bias_max / 8
    return SlopeRule(model.num_heads, exponent_factor=steepness, counts_holes=True)


def _replacements(model: Any) -> list[Replacement]:
    return [(block.attn, "forward", _attention_forward) for block in model.blocks]


def _traceable(model: Any) -> list[Replacement]:
    layers = [(block.attn, "forward", _traceable_forward) for block in model.blocks]
    return [(model, "build_mpt_alibi_tensor", _no_tensor), *layers]


def _no_tensor(*_: Any, **__: Any) -> None:
    """Replace MptModel.build_mpt_alibi_tensor."""


def _attention_forward(
    attention: MptAttention,
    hidden_states: torch.Tensor,
    position_bias: torch.Tensor,
    past_key_values: Any = None,
    attention_mask: ForwardPass | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace MptAttention.forward."""
    heads = attention.n_heads
    forward_pass = require_pass(attention_mask, attention, heads, hidden_states, attention.out_proj)
    return _attend(attention, hidden_states, past_key_values, partial(attend, forward_pass))


def _traceable_forward(
    attention: MptAttention,
    hidden_states: torch.Tensor,
    position_bias: None,
    past_key_values: Any = None,
    attention_mask: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace MptAttention.forward for attention="traceable"; its mask is True for hidden keys."""
    seen = None if attention_mask is None else ~attention_mask
    checks.whole_layer("MPT", attention.out_proj.weight)
    traced = traceable.of_layer(attention, seen, attention.n_heads, hidden_states)
    return _attend(attention, hidden_states, past_key_values, traced)


def _attend(
    attention: MptAttention,
    hidden_states: torch.Tensor,
    past_key_values: Any,
    attend: Callable[..., tuple[torch.Tensor, torch.Tensor | None]],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute MptAttention.forward with attention of its queries, keys and values."""
    fused = attention.Wqkv(hidden_states)
    if attention.clip_qkv:
        fused = fused.clamp(min=-attention.clip_qkv, max=attention.clip_qkv)
    heads = fused.unflatten(2, (3, -1, attention.head_dim))  # those of this rank
    query, key, value = heads.permute(2, 0, 3, 1, 4)
    dropout = attention.attn_dropout_p if attention.training else 0.0
    scale = cast(float, attention.softmax_scale)
    cache = past_key_values, attention.layer_idx
    context, weights = attend(query, key, value, cache, scale, dropout)
    return attention.out_proj(context.transpose(1, 2).flatten(2)), weights


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
        checks.packed_once(getattr(block.attn.Wqkv.weight, "placements", None))


FAMILY = Family(
    name="MPT",
    model=MptModel,
    attention=MptAttention,
    expected={
        (MptAttention, "forward"): (
            "hidden_states", "position_bias", "past_key_values", "attention_mask",
        ),
        (MptModel, "forward"): INPUTS,
    },
    rule=_rule,
    tensor_parallel=_tensor_parallel,
    replacements=_replacements,
    traceable=_traceable,
    check=_check,
    attentions=("fused", "eager", "traceable"),
)  # fmt: skip
