"""MPT in vLLM's layers; vLLM had its own until 0.28.

    x + W_o attention(norm(x)),  then  x + W_down gelu(W_up norm(x))

No layer has a bias, queries, keys and values come from one product that may be clipped, and GELU
has its erf form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed import get_pp_group, get_tensor_model_parallel_rank
from vllm.distributed import get_tensor_model_parallel_world_size as processes_of_layer
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    make_empty_intermediate_tensors_factory,
    make_layers,
    maybe_prefix,
)
from vllm.sequence import IntermediateTensors

from ntk_alibi.engines.vllm.families import (
    MPT,
    attention_option,
    slopes_of_layer,
    slopes_of_process,
)
from ntk_alibi.engines.vllm.models import stretch


class MptAttention(nn.Module):
    """Attention of one layer; `stretch` gives it other slopes."""

    def __init__(
        self, config: Any, cache: CacheConfig | None, quant: QuantizationConfig | None, prefix: str
    ) -> None:
        super().__init__()
        size, heads = config.hidden_size, config.num_attention_heads
        head_size = size // heads
        plain = slopes_of_layer(MPT.rule(config), None, 0)
        own = slopes_of_process(plain, get_tensor_model_parallel_rank(), processes_of_layer())
        scale = attention_option(config, "softmax_scale")
        self.clip = attention_option(config, "clip_qkv")
        self.Wqkv = QKVParallelLinear(
            size, head_size, heads, bias=False, quant_config=quant, prefix=f"{prefix}.Wqkv"
        )
        self.out_proj = RowParallelLinear(
            size, size, bias=False, quant_config=quant, prefix=f"{prefix}.out_proj"
        )
        self.attn = Attention(
            len(own),
            head_size,
            1.0 / math.sqrt(head_size) if scale is None else scale,
            alibi_slopes=own.tolist(),
            cache_config=cache,
            quant_config=quant,
            prefix=f"{prefix}.attn",
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the attention's output."""
        fused, _ = self.Wqkv(hidden)
        if self.clip:
            fused = fused.clamp(min=-self.clip, max=self.clip)
        query, key, value = fused.chunk(chunks=3, dim=-1)
        output, _ = self.out_proj(self.attn(query, key, value))
        return output  # type: ignore[no-any-return]


class MptFeedForward(nn.Module):
    """Feed-forward part of one layer."""

    def __init__(self, config: Any, quant: QuantizationConfig | None, prefix: str) -> None:
        super().__init__()
        size = config.hidden_size
        inner = config.expansion_ratio * size
        self.up_proj = ColumnParallelLinear(
            size, inner, bias=False, quant_config=quant, prefix=f"{prefix}.up_proj"
        )
        self.act = nn.GELU(approximate="none")
        self.down_proj = RowParallelLinear(
            inner, size, bias=False, quant_config=quant, prefix=f"{prefix}.down_proj"
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the feed-forward part's output."""
        inner, _ = self.up_proj(hidden)
        output, _ = self.down_proj(self.act(inner))
        return output  # type: ignore[no-any-return]


class MptBlock(nn.Module):
    """One layer."""

    def __init__(
        self, config: Any, cache: CacheConfig | None, quant: QuantizationConfig | None, prefix: str
    ) -> None:
        super().__init__()
        self.norm_1 = _norm(config)
        self.attn = MptAttention(config, cache, quant, f"{prefix}.attn")
        self.norm_2 = _norm(config)
        self.ffn = MptFeedForward(config, quant, f"{prefix}.ffn")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after this layer."""
        hidden = hidden + self.attn(self.norm_1(hidden))
        return hidden + self.ffn(self.norm_2(hidden))  # type: ignore[no-any-return]


def _norm(config: Any) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon, bias=False)


#: The axis that holds tokens, for each input of `MptModel`. vLLM would find them by annotations,
#: which are strings in this module.
_TOKENS = dict.fromkeys(("input_ids", "position_ids", "intermediate_tensors", "inputs_embeds"), 0)


@support_torch_compile(dynamic_arg_dims=_TOKENS)
class MptModel(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        cache, quant = vllm_config.cache_config, vllm_config.quant_config
        self.wte = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.start_layer, self.end_layer, self.blocks = make_layers(
            config.num_hidden_layers,
            lambda prefix: MptBlock(config, cache, quant, prefix),
            prefix=f"{prefix}.blocks",
        )
        self.norm_f = _norm(config)
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(
            ["hidden_states"], config.hidden_size
        )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens."""
        return self.wte(input_ids)  # type: ignore[no-any-return]

    def forward(
        self,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors:
        """Return the last hidden states, or those for the next process of a pipeline."""
        if not get_pp_group().is_first_rank:
            assert intermediate_tensors is not None
            hidden = intermediate_tensors["hidden_states"]
        elif inputs_embeds is not None:
            hidden = inputs_embeds
        else:
            assert input_ids is not None
            hidden = self.embed_input_ids(input_ids)
        for layer in islice(self.blocks, self.start_layer, self.end_layer):
            hidden = layer(hidden)
        if not get_pp_group().is_last_rank:
            return IntermediateTensors({"hidden_states": hidden})
        return self.norm_f(hidden)


class MptForCausalLM(nn.Module, SupportsPP):  # type: ignore[misc]
    """MPT with a head for the next token."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        MPT.check(config)
        self.config = config
        self.transformer = MptModel(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "transformer")
        )
        self.lm_head = ParallelLMHead(
            config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
        )
        if config.tie_word_embeddings:
            self.lm_head = self.lm_head.tie_weights(self.transformer.wte)
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.make_empty_intermediate_tensors = self.transformer.make_empty_intermediate_tensors
        stretch(self, vllm_config, MPT)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens."""
        return self.transformer.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors:
        """Return the last hidden states."""
        return self.transformer(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of hidden states."""
        return self.logits_processor(  # type: ignore[no-any-return]
            self.lm_head, hidden_states
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load weights by the names of checkpoints, with or without "transformer."."""
        loader = AutoWeightsLoader(self)  # it leaves the copy of tied weights out
        return loader.load_weights(  # type: ignore[no-any-return]
            (name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}", x)
            for name, x in weights
        )
