"""Small random models of T5's relatives, with tables that matter."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from padded_batches import VOCABULARY

#: Float32 sums of a few hundred terms through two layers, at values of about 5.
CLOSE = {"atol": 2e-5, "rtol": 0.0}
HEADS, CHANNELS, BUCKETS = 4, 32, 16


def _t5(prefix: str, **config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "d_model": CHANNELS, "d_kv": 16, "d_ff": 32}
    layers = {"num_layers": 2, "num_decoder_layers": 2, "num_heads": HEADS}
    buckets = {"relative_attention_num_buckets": BUCKETS, "relative_attention_max_distance": 24}
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
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64}
    layers = {"num_hidden_layers": 2, "num_attention_heads": HEADS}
    more = {"relative_attention_num_buckets": 40, "max_position_embeddings": 300}
    return transformers.MPNetForMaskedLM(transformers.MPNetConfig(**sizes, **layers, **more))


def _pix2struct() -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "d_kv": 16, "d_ff": 32, "num_layers": 2}
    config = transformers.Pix2StructTextConfig(num_heads=HEADS, **sizes)
    config.initializer_range = 0.1  # transformers asks for it, and has none
    return transformers.Pix2StructTextModel(config)


MAKERS = {
    "T5": lambda: _t5("T5"),
    "MPNet": _mpnet,
    "mT5": lambda: _t5("MT5", feed_forward_proj="gated-gelu"),
    "UMT5": lambda: _t5("UMT5"),
    "SwitchTransformers": _switch,
    "Pop2Piano": lambda: _t5("Pop2Piano"),
    "Pix2Struct": _pix2struct,
}


def make_relative(name: str) -> Any:
    """Return a model in transformers' eager form, whose tables are as large as its scores."""
    torch.manual_seed(0)
    model = MAKERS[name]()
    for part, parameter in model.named_parameters():
        if "relative_attention_bias" in part:
            torch.nn.init.normal_(parameter, std=2.0)
    if name != "MPNet":
        model.set_attn_implementation("eager")
    return model.eval()
