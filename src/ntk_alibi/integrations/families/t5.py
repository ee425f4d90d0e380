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
from torch import nn

from ntk_alibi.biases.t5 import T5
from ntk_alibi.integrations.arguments import CACHE, cache_of
from ntk_alibi.integrations.family import Code, Family, is_of
from ntk_alibi.integrations.tables import Table


def _layers(stack: Any) -> list[nn.Module]:
    return [block.layer[0].SelfAttention for block in stack.block]


def _crossing(stack: Any) -> list[nn.Module]:
    return [block.layer[1].EncDecAttention for block in stack.block] if _is_causal(stack) else []


def _text_layers(model: Any) -> list[nn.Module]:
    return [block.self_attention.attention for block in model.layer]


def _text_crossing(model: Any) -> list[nn.Module]:
    return [block.encoder_decoder_attention.attention for block in model.layer]


def _heads(layers_of: Any, model: Any) -> int:
    return int(layers_of(model)[0].n_heads)


def _is_causal(model: Any) -> bool:
    return bool(model.config.is_decoder)


def _tables(layers_of: Any, model: Any) -> list[Table]:
    """Return the table of each layer, its own or the table of a layer before it."""
    tables: list[Table] = []
    for layer in layers_of(model):
        last = layer.relative_attention_max_distance
        bias = partial(_bias, bidirectional=not _is_causal(model), max_distance=last)
        own = layer.has_relative_attention_bias
        buckets = layer.relative_attention_num_buckets
        tables.append(Table(layer, buckets, bias) if own else tables[-1])
    return tables


def _bias(rows: torch.Tensor, **options: Any) -> T5:
    return T5(rows.t(), **options)


def _forward(
    attend: Any,
    layer: Any,
    hidden_states: torch.Tensor,
    mask: Any = None,
    key_value_states: torch.Tensor | None = None,
    position_bias: None = None,
    **others: Any,
) -> tuple[torch.Tensor, None, torch.Tensor | None]:
    """Replace T5Attention.forward; there is no bias for the next layer."""
    context, weights = _attend(attend, layer, hidden_states, key_value_states, mask, others)
    return context, None, weights


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
    of_query, of_key, of_value, of_output = _products(layer)
    cache, number = cache_of(others), attend.number

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, layer.key_value_proj_dim).transpose(1, 2)

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
        key, value = heads(of_key(states)), heads(of_value(states))
        if kept is not None:
            kept[number] = True
    option = others.get("output_attentions")
    context, weights = attend(
        heads(of_query(hidden_states)),
        key,
        value,
        mask=mask,
        cache=cache,
        scale=1.0,  # T5 scales nothing
        dropout=layer.dropout if layer.training else 0.0,
        weights=bool(attend.model.config.output_attentions if option is None else option),
    )
    output: torch.Tensor = of_output(context.transpose(1, 2).flatten(2))
    return output, weights


def _products(layer: Any) -> tuple[nn.Module, ...]:
    """Return the linear layers of queries, keys, values and output."""
    if hasattr(layer, "q"):
        return layer.q, layer.k, layer.v, layer.o
    return layer.query, layer.key, layer.value, layer.output


def _family(
    name: str,
    prefix: str,
    *,
    parameters: tuple[str, ...] = ("hidden_states", "mask", "key_value_states", CACHE),
    model: str = "",
    layers: Any = _layers,
    crossing: Any = _crossing,
    **others: Any,
) -> Family:
    """Return a family with T5's names, but for the others that are given."""
    fields: dict[str, Any] = {"forward": _forward, **others}
    model = model or f"{prefix}Stack"
    return Family(
        name=name,
        matches=partial(is_of, model),
        layers=layers,
        crossing=crossing,
        slopes=partial(_heads, layers),
        causal=_is_causal,
        code=Code(
            model=model,
            attention=f"{prefix}Attention",
            config=f"{prefix}Config",
            parameters=parameters,
        ),
        tables=partial(_tables, layers),
        **fields,
    )


def _check_decoder(model: Any, _: Any) -> None:
    if not _is_causal(model):
        raise ValueError(
            "model must be a decoder, got a Pix2Struct whose text_config.is_decoder is False"
        )


FAMILIES = (
    _family("T5", "T5"),
    _family("mT5", "MT5"),
    _family(
        "UMT5",
        "UMT5",
        forward=_umt5_forward,
        parameters=(
            "hidden_states",
            "encoder_hidden_states",
            CACHE,
            "attention_mask",
        ),
    ),
    _family("SwitchTransformers", "SwitchTransformers"),
    _family("Pop2Piano", "Pop2Piano"),
    _family(
        "Pix2Struct",
        "Pix2StructText",
        model="Pix2StructTextModel",
        layers=_text_layers,
        crossing=_text_crossing,
        check=_check_decoder,
    ),
)
