"""Baichuan2-7B, abridged: it has the class names of the 13B models, and rotary positions.

As remote code the module imports nothing beside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast


class BaichuanConfig(PretrainedConfig):
    model_type = "baichuan"

    def __init__(
        self,
        vocab_size: int = 97,
        hidden_size: int = 48,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 6,
        max_position_embeddings: int = 64,
        pad_token_id: int = 0,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        super().__init__(pad_token_id=pad_token_id, **kwargs)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.inv_freq = base ** (-torch.arange(0, dim, 2) / dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[2])[:, None] * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // self.num_heads
        self.W_pack = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_value: Any = None,
        output_attentions: bool = False,
        use_cache: bool = False,
    ) -> tuple[torch.Tensor, None, None]:
        parts = self.W_pack(hidden_states).unflatten(-1, (3, self.num_heads, self.head_dim))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = self.rotary_emb(query), self.rotary_emb(key)
        made = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(made.transpose(1, 2).flatten(2)), None, None


class DecoderLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states + self.self_attn(self.input_layernorm(hidden_states))[0]


class BaichuanPreTrainedModel(PreTrainedModel):
    config_class = BaichuanConfig
    base_model_prefix = "model"

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(std=0.2)


class BaichuanModel(BaichuanPreTrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> BaseModelOutputWithPast:
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return BaseModelOutputWithPast(last_hidden_state=hidden_states)


class BaichuanForCausalLM(BaichuanPreTrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = BaichuanModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutputWithPast:
        return CausalLMOutputWithPast(logits=self.lm_head(self.model(input_ids).last_hidden_state))


def small_baichuan_7b(**config: Any) -> BaichuanForCausalLM:
    """Return a small random model in eval mode."""
    return BaichuanForCausalLM(BaichuanConfig(**config)).eval()
