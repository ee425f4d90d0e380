"""T5 and its relatives, with the bias of `ntk_alibi.T5`.

transformers makes the bias as a matrix of all pairs, which the first layer passes to the others
(UMT5 has a table in each layer), and one of zeros for cross-attention. A patched model makes none:
its layers attend by `T5` of the same weights. Encoder and decoder are patched each on its own. In a
layer, distances count columns, so that padding inside a text counts, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from packaging.version import Version
from torch import nn

from ntk_alibi.biases.t5 import T5
from ntk_alibi.integrations.arguments import CACHE, cache_of
from ntk_alibi.integrations.biases import Table
from ntk_alibi.integrations.family import of_transformers, register
from ntk_alibi.integrations.transformers_versions import transformers_version


def _is_causal(model: Any) -> bool:
    return bool(model.config.is_decoder)


def _tables(model: Any, layers: list[Any]) -> list[Table]:
    """Return the table of each layer, its own or the table of a layer before it."""
    tables: list[Table] = []
    for layer in layers:
        last = layer.relative_attention_max_distance
        bias = partial(_bias, bidirectional=not _is_causal(model), max_distance=last)
        own = layer.has_relative_attention_bias
        if not (own or tables):
            raise ValueError(
                "model must have its table of biases in its first layer, as transformers makes it, "
                "got one whose first layer has none: its layers would attend without a bias"
            )
        buckets = layer.relative_attention_num_buckets
        tables.append(Table(layer, buckets, bias) if own else tables[-1])
    return tables


def _bias(rows: Any, **options: Any) -> T5:
    bias = T5(rows.T, **options)
    bias.define(sides="symmetric")  # keys ahead, which a mask may show, are in bucket 0
    return bias


def _forward(
    attend: Any,
    layer: Any,
    hidden_states: torch.Tensor,
    mask: Any = None,
    key_value_states: torch.Tensor | None = None,
    position_bias: None = None,
    **others: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Replace T5Attention.forward; there is no bias for the next layer."""
    context, weights = _attend(attend, layer, hidden_states, key_value_states, mask, others)
    # Before 5.16, where layers got a scale, Switch takes a pair of a layer without weights.
    pair = weights is None and not hasattr(layer, "scaling")
    return (context, None) if pair else (context, None, weights)


def _umt5_forward(
    attend: Any,
    layer: Any,
    hidden_states: torch.Tensor,
    encoder_hidden_states: torch.Tensor | None = None,
    attention_mask: Any = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace UMT5Attention.forward."""
    return _attend(attend, layer, hidden_states, encoder_hidden_states, attention_mask, others)


def _attend(
    attend: Any,
    layer: Any,
    hidden_states: torch.Tensor,
    other_states: torch.Tensor | None,
    mask: Any,
    others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return output and weights of self-attention, or of attention to other states."""
    if hasattr(layer, "q"):
        products = layer.q, layer.k, layer.v, layer.o
    else:
        products = layer.query, layer.key, layer.value, layer.output
    cache, number, of_head = cache_of(others), layer.layer_idx, (-1, layer.key_value_proj_dim)
    query = products[0](hidden_states).unflatten(2, of_head).transpose(1, 2)
    crosses = other_states is not None
    states = other_states if crosses else hidden_states
    kept = None
    if hasattr(cache, "cross_attention_cache"):
        kept = cache.is_updated if crosses else None
        cache = cache.cross_attention_cache if crosses else cache.self_attention_cache
    elif crosses and cache is not None:
        raise ValueError(
            f"{CACHE} must be an EncoderDecoderCache with encoder_hidden_states, got "
            f"{type(cache).__name__}"
        )
    if kept is not None and kept.get(number):
        key, value, cache = cache.layers[number].keys, cache.layers[number].values, None
    else:
        key = products[1](states).unflatten(2, of_head).transpose(1, 2)
        value = products[2](states).unflatten(2, of_head).transpose(1, 2)
        if kept is not None:
            kept[number] = True
    option = others.get("output_attentions")
    context, weights = attend(
        query,
        key,
        value,
        mask=mask,
        cache=cache,
        scale=1.0,  # T5 scales nothing
        dropout=layer.dropout if layer.training else 0.0,
        weights=bool(attend.patch.model.config.output_attentions if option is None else option),
    )
    output: torch.Tensor = products[3](context.transpose(1, 2).flatten(2))
    return output, weights


def _register(prefix: str, **others: Any) -> None:
    """Register a family with T5's names, but for the others that are given."""

    def layers(stack: Any) -> list[nn.Module]:
        return [block.layer[0].SelfAttention for block in stack.block]

    def crossing(stack: Any) -> list[nn.Module]:
        crosses = _is_causal(stack)
        return [block.layer[1].EncDecAttention for block in stack.block] if crosses else []

    fields: dict[str, Any] = {
        "name": prefix,
        "model": f"{prefix}Stack",
        "attention": f"{prefix}Attention",
        "config": f"{prefix}Config",
        "parameters": ("hidden_states", "mask", "key_value_states", CACHE),
        "forward": _forward,
        "layers": layers,
        "crossing": crossing,
        **others,
    }
    of_model = fields["layers"]
    family = of_transformers(
        slopes=lambda model: of_model(model)[0].n_heads,
        causal=_is_causal,
        tables=lambda model: _tables(model, of_model(model)),
        masks_pairs=True,
        **fields,
    )
    register(family)


_register("T5")
_register("MT5", name="mT5")
_register(
    "UMT5",
    forward=_umt5_forward,
    parameters=("hidden_states", "encoder_hidden_states", CACHE, "attention_mask"),
    makes_masks=lambda _: Version(transformers_version() or "0") < Version("5.15"),
)
_register("SwitchTransformers", makes_masks=lambda stack: not _is_causal(stack))
