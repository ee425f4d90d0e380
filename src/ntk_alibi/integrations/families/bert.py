"""BERTs with ALiBi in remote code: JinaBERT (jina-embeddings-v2), and MosaicBERT with DNABERT-2.

Their encoders make a bias of heads x length x length in every pass, or keep one. In a patched model
it is one zero, and the layers attend with slopes, to the keys that the padding mask leaves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ntk_alibi.integrations.attend import Attend
from ntk_alibi.integrations.family import Family, dropped, register
from ntk_alibi.integrations.settings import Settings

#: A length for which an encoder never makes its bias again.
_LONGEST = 2**31


def _attention(module: nn.Module) -> Any:
    """Return the first attention layer of a BERT whose encoder makes an ALiBi, or None."""
    encoder = getattr(module, "encoder", None)
    if not hasattr(encoder, "rebuild_alibi_tensor"):
        return None
    first: Any = next(iter(getattr(encoder, "layer", ())), None)
    return getattr(getattr(first, "attention", None), "self", None)


def _zero(_: Any, size: int, device: Any = None) -> torch.Tensor:
    """Replace the encoder's rebuild_alibi_tensor."""
    del size
    return torch.zeros(1, 1, 1, 1, device=device)


def _release(model: Any) -> int | None:
    """Free the bias that an encoder keeps, and return its length."""
    encoder = model.encoder
    if not hasattr(encoder, "alibi"):
        return None
    size: int = encoder._current_alibi_size
    encoder.alibi = encoder.alibi.new_zeros(1, 1, 1, 1)
    encoder._current_alibi_size = _LONGEST
    return size


def _rebuild(model: Any, size: int | None) -> None:
    """Let an encoder make its bias again: to keep it would keep gigabytes."""
    if size is None:
        return
    encoder, like = model.encoder, model.encoder.alibi
    bias = encoder.rebuild_alibi_tensor(size=size, device=like.device)
    bias = encoder.alibi if bias is None else bias
    encoder.alibi = bias.to(like.dtype)


def _check_jina(model: Any, _: Settings) -> None:
    if getattr(model.config, "is_decoder", False):
        raise ValueError("model must be an encoder, got a JinaBERT with is_decoder=True")


def _jina_forward(
    attend: Attend,
    layer: Any,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    head_mask: torch.Tensor | None = None,
    encoder_hidden_states: torch.Tensor | None = None,
    encoder_attention_mask: torch.Tensor | None = None,
    past_key_value: Any = None,
    output_attentions: bool | None = False,
    bias: Any = None,
) -> tuple[torch.Tensor, ...]:
    """Replace JinaBertSelfAttention.forward."""
    if encoder_hidden_states is not None or past_key_value is not None:
        raise ValueError(
            "encoder_hidden_states and past_key_value must be None in a patched JinaBERT, an "
            "encoder"
        )
    query, key = layer.query(hidden_states), layer.key(hidden_states)
    if hasattr(layer, "layer_norm_q"):  # jina-bert-v2-qk-post-norm
        query, key = layer.layer_norm_q(query), layer.layer_norm_k(key)
    value, size = layer.value(hidden_states), layer.attention_head_size
    query, key, value = (x.unflatten(2, (-1, size)).transpose(1, 2) for x in (query, key, value))
    dropout = layer.dropout.p if layer.training else 0.0
    weights = bool(output_attentions)
    context, formed = attend(
        query, key, value, mask=attention_mask, dropout=dropout, weights=weights
    )
    if head_mask is not None:
        if head_mask.shape[-2:] != (1, 1):
            raise ValueError(
                f"head_mask must have a number for each head, got shape {tuple(head_mask.shape)}"
            )
        context = context * head_mask
        formed = None if formed is None else formed * head_mask
    output = context.transpose(1, 2).flatten(2)
    return (output, formed) if weights and formed is not None else (output,)


def _mosaic_forward(
    attend: Attend,
    layer: Any,
    hidden_states: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen_in_batch: int,
    indices: torch.Tensor,
    attn_mask: torch.Tensor,
    *unused: Any,
    **others: Any,
) -> torch.Tensor:
    """Replace BertUnpadSelfAttention.forward: layers get the real tokens of all rows in one."""
    del unused, others  # the bias of all pairs, and slopes in revisions for flash-attn
    rows, tokens = len(cu_seqlens) - 1, max_seqlen_in_batch
    packed = layer.Wqkv(hidden_states)
    padded = len(indices) < rows * tokens
    if padded:
        packed = packed.new_zeros(rows * tokens, packed.shape[1]).index_copy(0, indices, packed)
    parts = packed.view(rows, tokens, 3, -1, layer.attention_head_size)
    query, key, value = parts.permute(2, 0, 3, 1, 4)
    dropout = dropped(layer.dropout)
    context, _ = attend(query, key, value, mask=attn_mask if padded else None, dropout=dropout)
    output = context.transpose(1, 2).flatten(2).flatten(0, 1)
    return output[indices] if padded else output


_COMMON: dict[str, Any] = {
    "layers": lambda model: [layer.attention.self for layer in model.encoder.layer],
    "slopes": lambda model: model.encoder.num_attention_heads,
    "causal": False,
    "replacements": lambda model: [(model.encoder, "rebuild_alibi_tensor", _zero)],
    "release": _release,
    "rebuild": _rebuild,
}

register(
    Family(
        name="JinaBERT",
        matches=lambda module: all(
            hasattr(_attention(module), x) for x in ("query", "key", "value")
        ),
        forward=_jina_forward,
        check=_check_jina,
        **_COMMON,
    )
)

register(
    Family(
        name="MosaicBERT",
        matches=lambda module: hasattr(_attention(module), "Wqkv"),
        forward=_mosaic_forward,
        # A layer takes its path in torch, not in Triton, where weights are dropped in training.
        while_compared=lambda model: [(_attention(model), "p_dropout", 1.0)],
        **_COMMON,
    )
)
