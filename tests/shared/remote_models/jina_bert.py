"""JinaBERT (jina-embeddings-v2), abridged: the interface of its remote code, written anew.

Both published code bases make a symmetric bias, added to the scores and never divided: with
`qk_norm`, the code of jina-bert-v2-qk-post-norm; with `alibi_buffer`, the revision that keeps the
bias of max_position_embeddings tokens. As remote code the module imports nothing beside.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling


class JinaBertConfig(PretrainedConfig):
    model_type = "bert"

    def __init__(
        self,
        vocab_size: int = 97,
        hidden_size: int = 48,
        num_hidden_layers: int = 3,
        num_attention_heads: int = 6,
        intermediate_size: int = 64,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 64,
        layer_norm_eps: float = 1e-12,
        pad_token_id: int = 0,
        position_embedding_type: str = "alibi",
        attn_implementation: str | None = None,
        is_decoder: bool = False,
        qk_norm: bool = False,
        alibi_buffer: bool = False,
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
        self.position_embedding_type = position_embedding_type
        self.attn_implementation = attn_implementation
        self.is_decoder = is_decoder
        self.qk_norm = qk_norm
        self.alibi_buffer = alibi_buffer


class JinaBertSelfAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.hidden_size
        self.attn_implementation = config.attn_implementation
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = size // config.num_attention_heads
        self.all_head_size = size
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        if config.qk_norm:
            self.layer_norm_q = nn.LayerNorm(size, eps=config.layer_norm_eps)
            self.layer_norm_k = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.position_embedding_type = config.position_embedding_type
        self.is_decoder = config.is_decoder

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.attention_head_size)).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        head_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_value: Any = None,
        output_attentions: bool | None = False,
        bias: Any = None,
    ) -> tuple[torch.Tensor, ...]:
        query, key, value = (made(hidden_states) for made in (self.query, self.key, self.value))
        if hasattr(self, "layer_norm_q"):
            query, key = self.layer_norm_q(query), self.layer_norm_k(key)
        query, key, value = (self.transpose_for_scores(x) for x in (query, key, value))
        if self.attn_implementation == "torch":
            dropout = self.dropout.p if self.training else 0.0
            mask = attention_mask + bias
            made = functional.scaled_dot_product_attention(query, key, value, mask, dropout)
            return (made.transpose(1, 2).flatten(2),)
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = self.dropout(functional.softmax(scores + bias, dim=-1))
        if head_mask is not None:
            weights = weights * head_mask
        made = (weights @ value).transpose(1, 2).flatten(2)
        return (made, weights) if output_attentions else (made,)


class JinaBertSelfOutput(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.dense(hidden_states))


class JinaBertAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self = JinaBertSelfAttention(config)
        self.output = JinaBertSelfOutput(config)

    def forward(self, hidden_states: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
        made, *weights = self.self(hidden_states, *args)
        return (self.output(made), *weights)


class JinaBertGLUMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.wo = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gated, plain = self.gated_layers(hidden_states).chunk(2, dim=-1)
        return self.wo(functional.gelu(gated) * plain)


class JinaBertLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = JinaBertAttention(config)
        self.mlp = JinaBertGLUMLP(config)
        self.layer_norm_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layer_norm_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        head_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        bias: Any = None,
        past_key_value: Any = None,
        output_attentions: bool | None = False,
    ) -> tuple[torch.Tensor, ...]:
        made, *weights = self.attention(
            hidden_states, attention_mask, head_mask, None, None, None, output_attentions, bias
        )
        hidden_states = self.layer_norm_1(hidden_states + made)
        return (self.layer_norm_2(hidden_states + self.mlp(hidden_states)), *weights)


class JinaBertEncoder(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(JinaBertLayer(config) for _ in range(config.num_hidden_layers))
        self.gradient_checkpointing = False
        self.num_attention_heads = config.num_attention_heads
        if config.alibi_buffer:
            alibi = self.rebuild_alibi_tensor(size=config.max_position_embeddings)
            self.register_buffer("alibi", alibi, persistent=False)

    def rebuild_alibi_tensor(self, size: int, device: Any = None) -> torch.Tensor:
        heads, places = self.num_attention_heads, torch.arange(size, device=device)
        base = 2 ** math.floor(math.log2(heads))
        powers = [*range(1, base + 1), *(k + 0.5 for k in range(heads - base))]
        slopes = torch.tensor([2 ** (-8 * power / base) for power in powers], device=device)
        self._current_alibi_size = size
        return -slopes[None, :, None, None] * (places[:, None] - places).abs()

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        head_mask: Any = None,
        output_attentions: bool | None = False,
        output_hidden_states: bool | None = False,
    ) -> BaseModelOutput:
        size, device, dtype = hidden_states.shape[1], hidden_states.device, hidden_states.dtype
        if not hasattr(self, "alibi"):
            bias = self.rebuild_alibi_tensor(size=size, device=device).to(dtype)
        else:
            if self._current_alibi_size < size:
                longer = self.rebuild_alibi_tensor(size=size, device=device).to(dtype)
                self.register_buffer("alibi", longer, persistent=False)
            elif self.alibi.device != device:
                self.alibi = self.alibi.to(device)
            bias = self.alibi[:, :, :size, :size]
        states, weights = [hidden_states], []
        for i, layer in enumerate(self.layer):
            of_heads = None if head_mask is None else head_mask[i]
            given = (hidden_states, attention_mask, of_heads, None, None, bias, None)
            if self.gradient_checkpointing and self.training:
                made = checkpoint(layer, *given, output_attentions, use_reentrant=True)
            else:
                made = layer(*given, output_attentions)
            hidden_states = made[0]
            states.append(hidden_states)
            weights.extend(made[1:])
        return BaseModelOutput(
            last_hidden_state=hidden_states,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(weights) if output_attentions else None,
        )


class JinaBertEmbeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size, config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(2, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        made = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(made))


class JinaBertPreTrainedModel(PreTrainedModel):
    config_class = JinaBertConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.2)
        elif isinstance(module, JinaBertEncoder) and hasattr(module, "alibi"):
            module.alibi.copy_(module.rebuild_alibi_tensor(module.alibi.shape[-1]))

    def _set_gradient_checkpointing(self, module: Any, value: bool = False) -> None:
        if isinstance(module, JinaBertEncoder):
            module.gradient_checkpointing = value


class JinaBertModel(JinaBertPreTrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings = JinaBertEmbeddings(config)
        self.encoder = JinaBertEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        head_mask: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        if attention_mask is None:
            attention_mask = torch.ones(input_ids.shape, device=input_ids.device)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        if head_mask is not None:
            head_mask = head_mask.expand(len(self.encoder.layer), -1)[:, None, :, None, None]
        hidden = 1.0 - attention_mask[:, None, None].to(self.dtype)
        made = self.encoder(
            self.embeddings(input_ids, token_type_ids),
            hidden * torch.finfo(self.dtype).min,
            head_mask,
            output_attentions,
            output_hidden_states,
        )
        output = BaseModelOutputWithPooling(**made)
        return output.to_tuple() if return_dict is False else output


def small_jina_bert(**config: Any) -> JinaBertModel:
    """Return a small random model in eval mode."""
    return JinaBertModel(JinaBertConfig(**config)).eval()
