"""MosaicBERT and DNABERT-2, abridged: the interface of their remote code, written anew.

Padding is taken away between layers; attention itself is padded. The encoder keeps a symmetric
bias of alibi_starting_size tokens, and makes a longer one for longer texts. The path that needs
torch alone is here; the published code takes a Triton kernel where Triton is installed, unless
weights are dropped. As remote code the module imports nothing beside.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

#: The Triton kernel, where there is one.
flash_attn_qkvpacked_func: Any = None


def unpad_input(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any, int]:
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    cu_seqlens = functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return x.flatten(0, 1)[indices], indices, cu_seqlens, int(lengths.max())


def pad_input(x: torch.Tensor, indices: torch.Tensor, batch: int, size: int) -> torch.Tensor:
    padded = x.new_zeros(batch * size, *x.shape[1:]).index_copy(0, indices, x)
    return padded.unflatten(0, (batch, size))


class BertConfig(PretrainedConfig):
    model_type = "bert"

    def __init__(
        self,
        vocab_size: int = 97,
        hidden_size: int = 48,
        num_hidden_layers: int = 3,
        num_attention_heads: int = 6,
        intermediate_size: int = 64,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.0,
        max_position_embeddings: int = 64,
        layer_norm_eps: float = 1e-12,
        pad_token_id: int = 0,
        alibi_starting_size: int = 32,
        **kwargs: Any,
    ) -> None:
        super().__init__(pad_token_id=pad_token_id, **kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.layer_norm_eps = layer_norm_eps
        self.alibi_starting_size = alibi_starting_size


class BertUnpadSelfAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.all_head_size = config.hidden_size
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.p_dropout = config.attention_probs_dropout_prob
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        cu_seqlens: torch.Tensor,
        max_seqlen_in_batch: int,
        indices: torch.Tensor,
        attn_mask: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        batch = cu_seqlens.shape[0] - 1
        packed = pad_input(self.Wqkv(hidden_states), indices, batch, max_seqlen_in_batch)
        parts = packed.unflatten(2, (3, self.num_attention_heads, self.attention_head_size))
        if self.p_dropout or flash_attn_qkvpacked_func is None:
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            scores = query @ key.transpose(-1, -2) / math.sqrt(self.attention_head_size) + bias
            weights = self.dropout(functional.softmax(scores, dim=-1))
            made = (weights @ value).transpose(1, 2)
        else:
            made = flash_attn_qkvpacked_func(parts, bias)
        return made.flatten(2).flatten(0, 1)[indices]


class BertSelfOutput(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + input_tensor)


class BertUnpadAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self = BertUnpadSelfAttention(config)
        self.output = BertSelfOutput(config)

    def forward(
        self,
        input_tensor: torch.Tensor,
        cu_seqlens: torch.Tensor,
        max_s: int,
        subset_idx: torch.Tensor | None = None,
        indices: torch.Tensor | None = None,
        attn_mask: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        made = self.self(input_tensor, cu_seqlens, max_s, indices, attn_mask, bias)
        if subset_idx is not None:
            made, input_tensor = made[subset_idx], input_tensor[subset_idx]
        return self.output(made, input_tensor)


class BertLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = BertUnpadAttention(config)
        self.gated_layers = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.wo = nn.Linear(config.intermediate_size, config.hidden_size)
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        hidden_states = self.attention(hidden_states, *args, **kwargs)
        gated, plain = self.gated_layers(hidden_states).chunk(2, dim=-1)
        return self.layernorm(self.wo(functional.gelu(gated) * plain) + hidden_states)


class BertEncoder(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))
        self.num_attention_heads = config.num_attention_heads
        self.rebuild_alibi_tensor(size=config.alibi_starting_size)

    def rebuild_alibi_tensor(self, size: int, device: Any = None) -> None:
        heads, places = self.num_attention_heads, torch.arange(size, device=device)
        base = 2 ** math.floor(math.log2(heads))
        powers = [*range(1, base + 1), *(k + 0.5 for k in range(heads - base))]
        slopes = torch.tensor([2 ** (-8 * power / base) for power in powers], device=device)
        self._current_alibi_size = size
        self.alibi = -slopes[None, :, None, None] * (places[:, None] - places).abs()

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor,
        output_all_encoded_layers: bool | None = True,
        subset_mask: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        batch, size = hidden_states.shape[:2]
        hidden = (1.0 - attention_mask[:, None, None].to(torch.float32)) * -10000.0
        real = attention_mask.bool()
        hidden_states, indices, cu_seqlens, _ = unpad_input(hidden_states, real)
        if self._current_alibi_size < size:
            warnings.warn(f"Increasing alibi size to {size}", stacklevel=2)
            self.rebuild_alibi_tensor(size=size, device=hidden_states.device)
        elif self.alibi.device != hidden_states.device:
            self.alibi = self.alibi.to(hidden_states.device)
        bias = hidden[:, :, :size, :size] + self.alibi[:, :, :size, :size]
        made = []
        for layer in self.layer:
            subset = None
            if subset_mask is not None and layer is self.layer[-1]:
                subset = subset_mask[real].nonzero().flatten()
            hidden_states = layer(
                hidden_states,
                cu_seqlens,
                size,
                subset,
                indices,
                attn_mask=attention_mask,
                bias=bias,
            )
            if output_all_encoded_layers:
                made.append(hidden_states)
        if subset_mask is None:
            hidden_states = pad_input(hidden_states, indices, batch, size)
        return made if output_all_encoded_layers else [hidden_states]


class BertPreTrainedModel(PreTrainedModel):
    config_class = BertConfig
    base_model_prefix = "bert"

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.2)


class BertModel(BertPreTrainedModel):
    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size, config.pad_token_id)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.encoder = BertEncoder(config)
        self.pooler = nn.Linear(size, size) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.word_embeddings

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        output_all_encoded_layers: bool | None = False,
        masked_tokens_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Any, torch.Tensor | None]:
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        subset_mask = None
        if masked_tokens_mask is not None:
            subset_mask = masked_tokens_mask.clone()
            subset_mask[:, 0] = True
        made = self.encoder(
            self.LayerNorm(self.word_embeddings(input_ids)),
            attention_mask,
            output_all_encoded_layers=output_all_encoded_layers,
            subset_mask=subset_mask,
        )
        last = made[-1]
        if masked_tokens_mask is not None:
            real = attention_mask.bool()
            last = last[masked_tokens_mask[real][subset_mask[real]]]
        pooled = None
        if self.pooler is not None and masked_tokens_mask is None:
            pooled = torch.tanh(self.pooler(last[:, 0]))
        return (made if output_all_encoded_layers else last), pooled


class BertForMaskedLM(BertPreTrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.cls = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> MaskedLMOutput:
        masked = None if labels is None else labels > 0
        hidden, _ = self.bert(input_ids, attention_mask=attention_mask, masked_tokens_mask=masked)
        logits = self.cls(hidden)
        loss = None
        if masked is not None:
            loss = functional.cross_entropy(logits, labels[masked])
        return MaskedLMOutput(loss=loss, logits=logits)


def small_mosaic_bert(**config: Any) -> BertModel:
    """Return a small random model in eval mode."""
    return BertModel(BertConfig(**config)).eval()
