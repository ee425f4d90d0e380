"""Baichuan-13B and Baichuan2-13B, abridged: the interface of their remote code, written anew.

The first pass in eval mode makes a buffer of heads x model_max_length x model_max_length values,
for any length; in training a pass makes a buffer of its length, and the next of the same length
takes it again. Caches are tuples. As remote code the module imports nothing beside.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

try:
    from transformers.generation import GenerationMixin
except ImportError:
    from transformers.generation.utils import GenerationMixin


class BaichuanConfig(PretrainedConfig):
    model_type = "baichuan"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(
        self,
        vocab_size: int = 97,
        hidden_size: int = 48,
        intermediate_size: int = 64,
        num_hidden_layers: int = 3,
        num_attention_heads: int = 6,
        model_max_length: int = 64,
        rms_norm_eps: float = 1e-6,
        use_cache: bool = True,
        pad_token_id: int = 0,
        bos_token_id: int = 1,
        eos_token_id: int = 2,
        tie_word_embeddings: bool = False,
        gradient_checkpointing: Any = False,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.model_max_length = model_max_length
        self.rms_norm_eps = rms_norm_eps
        self.use_cache = use_cache
        self.gradient_checkpointing = (gradient_checkpointing,)  # true, as published
        super().__init__(
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            tie_word_embeddings=tie_word_embeddings,
            **kwargs,
        )


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(squares + self.epsilon)).to(self.weight.dtype)


class BaichuanAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.head_dim = self.hidden_size // self.num_heads
        self.max_position_embeddings = config.model_max_length
        self.W_pack = nn.Linear(self.hidden_size, 3 * self.hidden_size, bias=False)
        self.o_proj = nn.Linear(self.hidden_size, self.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_value: tuple[torch.Tensor, torch.Tensor] | None = None,
        output_attentions: bool = False,
        use_cache: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, tuple[torch.Tensor, torch.Tensor] | None]:
        parts = self.W_pack(hidden_states).unflatten(-1, (3, self.num_heads, self.head_dim))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        held = (key, value) if use_cache else None
        scores = query @ key.transpose(2, 3) / math.sqrt(self.head_dim)
        if attention_mask is not None:
            if query.shape[2] == 1:
                attention_mask = attention_mask[..., -1:, :]
            scores = scores + attention_mask
            scores = scores.clamp(min=torch.finfo(scores.dtype).min)
        weights = functional.softmax(scores, dim=-1)
        made = self.o_proj((weights @ value).transpose(1, 2).flatten(2))
        return made, weights if output_attentions else None, held


class BaichuanLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn = BaichuanAttention(config)
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_value: Any = None,
        output_attentions: bool | None = False,
        use_cache: bool | None = False,
    ) -> tuple[Any, ...]:
        made, _, held = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            past_key_value=past_key_value,
            output_attentions=output_attentions,
            use_cache=use_cache,
        )
        hidden_states = hidden_states + made
        gate = functional.silu(self.gate_proj(self.post_attention_layernorm(hidden_states)))
        made = (hidden_states + self.down_proj(gate),)
        return (*made, held) if use_cache else made


class BaichuanPreTrainedModel(PreTrainedModel):
    config_class = BaichuanConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("BaichuanLayer",)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.2)


class BaichuanModel(BaichuanPreTrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.n_head = config.num_attention_heads
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(BaichuanLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = config.gradient_checkpointing
        self.post_init()
        self.max_cache_pos = config.model_max_length
        self.first_run = True
        self.alibi_mask = None

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def _mask_of(self, size: int) -> torch.Tensor:
        base = 2 ** math.floor(math.log2(self.n_head))
        powers = [*range(1, base + 1), *(k + 0.5 for k in range(self.n_head - base))]
        slopes = torch.tensor([2 ** (-8 * power / base) for power in powers])
        places = torch.arange(size)
        causal = torch.full((size, size), float("-inf")).triu(1)
        return causal + slopes[:, None, None] * (places - places[:, None])

    def get_alibi_mask(self, tensor: torch.Tensor, seq_length_with_past: int) -> torch.Tensor:
        if self.training:
            return self._mask_of(seq_length_with_past).to(tensor)
        if self.first_run or seq_length_with_past > self.max_cache_pos:
            self.first_run = False
            self.max_cache_pos = max(self.max_cache_pos, seq_length_with_past)
            kept = self._mask_of(self.max_cache_pos).to(tensor)
            self.register_buffer("future_mask", kept, persistent=False)
        return self.future_mask[: self.n_head, :seq_length_with_past, :seq_length_with_past]

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = False,
        output_attentions: bool | None = False,
        output_hidden_states: bool | None = False,
        return_dict: bool | None = True,
    ) -> Any:
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        size = inputs_embeds.shape[1]
        if past_key_values is not None:
            size += past_key_values[0][0].shape[2]
        if self.training:
            if self.alibi_mask is None or self.alibi_mask.shape[-1] != size:
                self.alibi_mask = self.get_alibi_mask(inputs_embeds, size)
            mask = self.alibi_mask
        else:
            mask = self.get_alibi_mask(inputs_embeds, size)
        if attention_mask is not None:
            if attention_mask.dim() == 2:
                pairs = attention_mask[:, :, None] * attention_mask[:, None, :]
                same = attention_mask[:, :, None] == attention_mask[:, None, :]
                attention_mask = torch.tril(pairs > 0) & same
            hidden = ~attention_mask[:, None].bool()
            hidden = hidden.to(mask.dtype).masked_fill(hidden, torch.finfo(mask.dtype).min)
            mask = hidden + mask[None]
        if self.gradient_checkpointing and self.training:
            use_cache = False
        hidden_states, states, caches = inputs_embeds, [inputs_embeds], []
        for i, layer in enumerate(self.layers):
            held = None if past_key_values is None else past_key_values[i]
            if self.gradient_checkpointing and self.training:
                given = (layer, hidden_states, mask, None, output_attentions, None)
                made = checkpoint(*given, use_reentrant=True)
            else:
                made = layer(
                    hidden_states,
                    attention_mask=mask,
                    past_key_value=held,
                    output_attentions=output_attentions,
                    use_cache=use_cache,
                )
            hidden_states = made[0]
            states.append(hidden_states)
            caches.extend(made[1:])
        hidden_states = self.norm(hidden_states)
        states[-1] = hidden_states
        made = BaseModelOutputWithPast(
            last_hidden_state=hidden_states,
            past_key_values=tuple(caches) if use_cache else None,
            hidden_states=tuple(states) if output_hidden_states else None,
        )
        return made if return_dict else made.to_tuple()


class BaichuanForCausalLM(BaichuanPreTrainedModel, GenerationMixin):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = BaichuanModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = False,
        output_hidden_states: bool | None = False,
        return_dict: bool | None = True,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        made = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        logits = self.lm_head(made.last_hidden_state)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=made.past_key_values,
            hidden_states=made.hidden_states,
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        past_key_values: Any = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        return {
            "input_ids": input_ids[:, -1:] if past_key_values else input_ids,
            "past_key_values": past_key_values,
            "use_cache": kwargs.get("use_cache"),
            "attention_mask": attention_mask,
        }

    @staticmethod
    def _reorder_cache(past_key_values: Any, beam_idx: torch.Tensor) -> Any:
        return tuple(
            tuple(part.index_select(0, beam_idx) for part in held) for held in past_key_values
        )


def small_baichuan(**config: Any) -> BaichuanForCausalLM:
    """Return a small random model in eval mode."""
    return BaichuanForCausalLM(BaichuanConfig(**config)).eval()
