"""BLOOM: the patch of its bias and attention.

transformers builds BLOOM's bias in two places: `BloomModel.build_alibi_tensor` when an attention
mask is given, and inline when none is (since 5.21; generate() drops a mask of ones itself since
5.19). Replacing the function therefore misses every unpadded prompt. In a patched model
`build_alibi_tensor` builds nothing, and the layers compute the bias of their pass.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch.nn import functional as F

from ntk_alibi import _checks
from ntk_alibi._torch_state import is_tracing
from ntk_alibi.biases.dense import build_alibi_tensor
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.classes import PATCH, direct, stock_class
from ntk_alibi.integrations.family import (
    Replacement,
    check_states,
    dropped,
    of_transformers,
    register,
)
from ntk_alibi.integrations.forward_pass import LayerCall, Pass
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.tokens import Tokens, untraced
from ntk_alibi.integrations.transformers_versions import class_named
from ntk_alibi.scaling import is_dynamic


def _replacements(model: Any) -> list[Replacement]:
    """Return the replacements of the bias, and of GELU: one operation of torch instead of seven.

    Beside fused attention, those seven would cost more than any other part of a layer but the
    matrix products. "eager" is transformers' own arithmetic to the bit, GELU included.
    """
    bias = (model, "build_alibi_tensor", _no_tensor)
    if vars(model)[PATCH].settings.attention == "eager":
        return [bias]
    found = (block.mlp.gelu_impl for block in model.h)
    stock = [gelu for gelu in found if stock_class(gelu) is class_named("BloomGelu", gelu)]
    return [bias, *((gelu, "forward", _gelu) for gelu in stock)]


@direct
def _gelu(_: Any, x: torch.Tensor) -> torch.Tensor:
    """Replace BloomGelu.forward by one operation of torch."""
    return F.gelu(x, approximate="tanh")


def _no_tensor(*_: Any, **__: Any) -> Tokens:
    """Replace BloomModel.build_alibi_tensor; a layer without a patch raises with what this is."""
    return Tokens()


def _forward(
    attend: Any,
    layer: Any,
    hidden_states: torch.Tensor,
    residual: torch.Tensor,
    alibi: Any,
    attention_mask: Any,
    layer_past: Any = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace BloomAttention.forward."""
    check_states(hidden_states)
    if attend.is_eager(output_attentions) and not attend.may_repeat():
        given = hidden_states, residual, attention_mask, layer_past, output_attentions
        stock = _stock(attend, *given, **kwargs)
        if stock is not None:
            return stock
    packed = layer.query_key_value(hidden_states)
    heads = packed.unflatten(2, (-1, 3, layer.head_dim))
    query, key, value = heads.permute(3, 0, 2, 1, 4)
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
    output = layer.dense(context.transpose(1, 2).flatten(2))
    return F.dropout(output, layer.hidden_dropout, layer.training) + residual, weights


@untraced
def _stock(
    attend: Any,
    hidden_states: torch.Tensor,
    residual: torch.Tensor,
    attention_mask: Any,
    cache: Any,
    weights: bool,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return what transformers' own layer does with the bias of its pass, or None.

    The bias is (batch * heads, 1 or queries, keys), as transformers adds it.
    """
    states = hidden_states[:, None]  # one head, whose number of tokens and device count
    call = LayerCall(states, states, states, attention_mask, cache, 1.0, weights=bool(weights))
    forward_pass = attend.pass_of(call)
    settings = forward_pass.settings
    if settings.attention != "eager" or settings.log_n is not None:
        return None
    layer, bias, dtype = attend.layer, forward_pass.bias_of(attend), hidden_states.dtype
    given = forward_pass, bias, layer.num_heads, hidden_states
    tensor, mask = forward_pass.memo(bias, dtype, _bias_and_mask, *given)
    kwargs["output_attentions"] = weights
    outputs: tuple[torch.Tensor, torch.Tensor] = stock_class(layer).forward(
        layer, hidden_states, residual, tensor, mask, cache, **kwargs
    )
    return outputs


def _bias_and_mask(
    forward_pass: Pass, bias: Any, heads: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    mask, dtype, problem = forward_pass.real, like.dtype, forward_pass.problem
    values, seen = forward_pass.pairs(bias, like)
    beyond = 0, mask.shape[1] - problem.shape[3]  # places of a static cache
    hidden = ~F.pad(seen.expand(len(mask), -1, -1, -1), beyond)
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=mask.device)
    hides = zeros.masked_fill(hidden, torch.finfo(dtype).min)
    scaling = getattr(bias, "scaling", None)
    own = getattr(bias, "rule", None) != forward_pass.rule
    evicted = is_dynamic(scaling) and problem.counts is not None
    relative = own or problem.mask.sink > 0 or evicted
    relative = relative or (scaling is not None and is_tracing())
    if relative:
        tensor = F.pad(values.expand(len(mask), -1, -1, -1), beyond).to(dtype).flatten(0, 1)
    elif scaling is None:
        stock = import_module("transformers.models.bloom.modeling_bloom").build_alibi_tensor
        tensor = stock(mask.long(), heads, dtype)
    else:
        tensor = build_alibi_tensor(mask, heads, dtype, scaling)
    return tensor, hides


def _check(model: Any, settings: Settings) -> None:
    config = model.config
    if config.pretraining_tp == 1 or not config.slow_but_exact:
        return
    where = "for a BLOOM with slow_but_exact and pretraining_tp > 1"
    _checks.check_equal("attention", settings.attention, "eager", where)
    _checks.check_equal("log_n", settings.log_n, None, where)


register(
    of_transformers(
        name="BLOOM",
        model="BloomModel",
        attention="BloomAttention",
        config="BloomConfig",
        parameters=("hidden_states", "residual", "alibi", "attention_mask", "layer_past"),
        methods={"build_alibi_tensor": ("attention_mask", "num_heads", "dtype")},
        layers=lambda model: [block.self_attention for block in model.h],
        forward=_forward,
        slopes=lambda model: ModelSlopes.for_bloom(model.num_heads),
        replacements=_replacements,
        check=_check,
        decoder=True,
    )
)
