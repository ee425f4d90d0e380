"""Small random models, of transformers and of a stranger in plain torch, and small tokenizers.

Functions import transformers themselves, because the stranger's models run without it.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ntk_alibi as na
from ntk_alibi.integrations import Family

VOCABULARY = 64

# ---- decoders with ALiBi -----------------------------------------------------------------------

HEADS = 8


def _bloom(heads: int, layers: int, **config: Any) -> Any:
    from transformers import BloomConfig, BloomForCausalLM

    sizes = {"hidden_size": 16 * heads, "n_layer": layers, "n_head": heads}
    defaults = {"vocab_size": VOCABULARY, "seq_length": 2048, "tie_word_embeddings": False}
    return BloomForCausalLM(BloomConfig(**{**sizes, **defaults, **config}))


def _mpt(heads: int, layers: int, **config: Any) -> Any:
    from transformers import MptConfig, MptForCausalLM

    sizes = {"vocab_size": VOCABULARY, "d_model": 16 * heads, "n_layers": layers, "n_heads": heads}
    defaults = {"max_seq_len": 48, "use_cache": True, "tie_word_embeddings": False}
    return MptForCausalLM(MptConfig(**{**sizes, **defaults, **config}))


def _falcon(heads: int, layers: int, **config: Any) -> Any:
    from transformers import FalconConfig, FalconForCausalLM

    sizes = {"hidden_size": 16 * heads, "num_hidden_layers": layers, "num_attention_heads": heads}
    defaults = {"vocab_size": VOCABULARY, "alibi": True, "tie_word_embeddings": False}
    return FalconForCausalLM(FalconConfig(**{**sizes, **defaults, **config}))


MAKERS = {
    "bloom": _bloom,
    "mpt": _mpt,
    "falcon": _falcon,
    "falcon, heads of keys": functools.partial(_falcon, multi_query=False),
    "falcon, new decoder": functools.partial(
        _falcon, new_decoder_architecture=True, num_kv_heads=2
    ),
}
families = pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
attentions = pytest.mark.parametrize("attention", ["eager", "fused"])


def make_model(name: str, heads: int = HEADS, layers: int = 3, **config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(heads)
        model = MAKERS[name](heads, layers, **config).eval()
        for parameter in model.parameters():
            if parameter.ndim == 2:  # weights large enough for attention to matter
                parameter.data.normal_(0, 0.08)
    return model


# ---- T5's relatives ----------------------------------------------------------------------------

T5_HEADS, T5_CHANNELS = 4, 32


def _t5(prefix: str, **config: Any) -> Any:
    import transformers

    sizes = {"vocab_size": VOCABULARY, "d_model": T5_CHANNELS, "d_kv": 16, "d_ff": 32}
    layers = {"num_layers": 2, "num_decoder_layers": 2, "num_heads": T5_HEADS}
    buckets = {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 24}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": VOCABULARY + 1}
    made = getattr(transformers, f"{prefix}Config")(
        **{**sizes, **layers, **buckets, **special, **config}
    )
    made.dense_act_fn = "gelu_new"  # ReLU's gradients jump where rounding changes a sign
    return getattr(transformers, f"{prefix}ForConditionalGeneration")(made)


def _switch() -> Any:
    sizes = {"expert_capacity": 1000, "num_experts": 2, "num_sparse_encoder_layers": 1}
    return _t5("SwitchTransformers", num_sparse_decoder_layers=1, router_jitter_noise=0.0, **sizes)


def _mpnet() -> Any:
    """Have more buckets in the table than transformers reads."""
    from transformers import MPNetConfig, MPNetForMaskedLM

    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64}
    layers = {"num_hidden_layers": 2, "num_attention_heads": T5_HEADS}
    more = {"relative_attention_num_buckets": 40, "max_position_embeddings": 300}
    return MPNetForMaskedLM(MPNetConfig(**sizes, **layers, **more))


RELATIVES = {
    "T5": lambda: _t5("T5"),
    "MPNet": _mpnet,
    "mT5": lambda: _t5("MT5", feed_forward_proj="gated-gelu"),
    "UMT5": lambda: _t5("UMT5"),
    "SwitchTransformers": _switch,
}


def make_relative(name: str) -> Any:
    """Return a model in transformers' eager form, whose tables are as large as its scores."""
    torch.manual_seed(0)
    model = RELATIVES[name]()
    for part, parameter in model.named_parameters():
        if "relative_attention_bias" in part:
            nn.init.normal_(parameter, std=2.0)
    if name != "MPNet":
        model.set_attn_implementation("eager")
    return model.eval()


# ---- a model in plain torch, whose family is written as a stranger would write it ---------------

TOY_HEADS, TOY_CHANNELS = 6, 48


class ToyAttention(nn.Module):
    """Attention with a dense bias, made in each call."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.probability = causal, 0.25
        self.project = nn.Linear(TOY_CHANNELS, 3 * TOY_CHANNELS)
        self.output = nn.Linear(TOY_CHANNELS, TOY_CHANNELS)

    def heads(self, hidden: torch.Tensor) -> Any:
        return self.project(hidden).unflatten(2, (3, TOY_HEADS, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.heads(hidden)
        at = torch.arange(hidden.shape[1])
        distance = (at[:, None] - at).abs()
        bias = -torch.from_numpy(na.alibi_slopes(TOY_HEADS))[:, None, None] * distance
        if self.causal:
            bias = bias.masked_fill(at > at[:, None], -torch.inf)
        bias = bias.masked_fill(attention_mask[:, None, None] == 0, torch.finfo(bias.dtype).min)
        weights = (query @ key.mT * query.shape[-1] ** -0.5 + bias).softmax(dim=-1)
        weights = nn.functional.dropout(weights, self.probability, self.training)
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class ToyModel(nn.Module):
    """Embeddings and attention layers."""

    def __init__(self, causal: bool = False, layers: int = 2) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_attention_heads=TOY_HEADS, hidden_size=TOY_CHANNELS)
        self.embed = nn.Embedding(VOCABULARY, TOY_CHANNELS)
        self.attentions = nn.ModuleList(ToyAttention(causal) for _ in range(layers))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = self.embed(input_ids)
        for attention in self.attentions:
            hidden = hidden + attention(hidden, mask)
        return hidden


def toy_model(causal: bool = False) -> ToyModel:
    torch.manual_seed(3)
    return ToyModel(causal).eval()


def is_toy(module: nn.Module) -> bool:
    return type(module).__name__ == "ToyModel" and hasattr(module, "attentions")


def toy_layers(model: Any) -> list[nn.Module]:
    return list(model.attentions)


def toy_forward(attend: Any, layer: Any, hidden: torch.Tensor, attention_mask: Any) -> torch.Tensor:
    query, key, value = layer.heads(hidden)
    dropout = layer.probability if layer.training else 0.0
    output, _ = attend(query, key, value, mask=attention_mask, dropout=dropout)
    mixed: torch.Tensor = layer.output(output.transpose(1, 2).flatten(2))
    return mixed


def toy_slopes(_: Any) -> int:
    return TOY_HEADS


def toy_family(causal: bool = False, **fields: Any) -> Family:
    required = {"matches": is_toy, "layers": toy_layers, "forward": toy_forward}
    return Family(**{"name": "Toy", **required, "slopes": toy_slopes, "causal": causal, **fields})


def toy_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return random ids, and a mask with padding behind in one row and before in the next."""
    values = np.random.default_rng(5).integers(VOCABULARY, size=(2, 37))
    mask = torch.ones(2, 37, dtype=torch.long)
    mask[0, -13:] = mask[1, :9] = 0
    return torch.from_numpy(values), mask


# ---- tokenizers that cut texts like published models' ------------------------------------------

#: BLOOM's rule, from its tokenizer.json.
BLOOM_RULE = " ?[^(\\s|[.,!?…。，、।۔،])]+"  # noqa: RUF001


def like_bloom(**options: Any) -> Any:
    """Return a tokenizer with the parts of BLOOM's."""
    from tokenizers import Regex
    from tokenizers import pre_tokenizers as cut

    steps = [
        cut.Split(Regex(BLOOM_RULE), "isolated"),
        cut.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return trained_tokenizer(cut.Sequence(steps), special, **options)


def like_mpt(**options: Any) -> Any:
    """Return a tokenizer with the parts of GPT-NeoX's, which MPT has: NFC, and runs of spaces."""
    from tokenizers import AddedToken, normalizers
    from tokenizers import pre_tokenizers as cut

    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    tokenizer = trained_tokenizer(cut.ByteLevel(add_prefix_space=False), special, **options)
    runs = [AddedToken(" " * size, normalized=True) for size in range(24, 1, -1)]
    tokenizer.add_tokens(runs)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def trained_tokenizer(
    pre_tokenizer: Any, special: dict[str, str], model: Any = None, trainer: Any = None
) -> Any:
    """Return a fast tokenizer of 600 tokens, trained on the prose."""
    from tokenizers import Tokenizer, decoders, models, processors, trainers
    from tokenizers import pre_tokenizers as cut
    from transformers import PreTrainedTokenizerFast

    from ntk_alibi.evaluation.records.corpus import held_out_text

    tokenizer = Tokenizer(models.BPE() if model is None else model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    names = list(dict.fromkeys(special.values()))
    trainer = trainers.BpeTrainer if trainer is None else trainer
    alphabet = cut.ByteLevel.alphabet()
    kind = trainer(vocab_size=600, special_tokens=names, initial_alphabet=alphabet)
    prose = held_out_text()[:10]
    hyphens = [text.replace(" ", "-") for text in prose]  # of which BLOOM's rule makes single words
    tokenizer.train_from_iterator([*prose, *hyphens], kind)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
