"""Small random models of all families."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import transformers

from padded_batches import VOCABULARY

HEADS = 8

#: Float32 sums of a few hundred terms, through three layers, at logits of about 1.
LOGITS = {"atol": 2e-5, "rtol": 0.0}


def _bloom(heads: int, layers: int, **config: Any) -> Any:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16 * heads,
        "n_layer": layers,
        "n_head": heads,
    }
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(tie_word_embeddings=False, **{**sizes, **config})
    )


def _mpt(heads: int, layers: int, **config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "d_model": 16 * heads, "n_layers": layers, "n_heads": heads}
    defaults = {"max_seq_len": 48, "use_cache": True, "tie_word_embeddings": False}
    return transformers.MptForCausalLM(transformers.MptConfig(**{**sizes, **defaults, **config}))


def _falcon(heads: int, layers: int, **config: Any) -> Any:
    sizes = {"hidden_size": 16 * heads, "num_hidden_layers": layers, "num_attention_heads": heads}
    defaults = {"vocab_size": VOCABULARY, "alibi": True, "tie_word_embeddings": False}
    return transformers.FalconForCausalLM(
        transformers.FalconConfig(**{**sizes, **defaults, **config})
    )


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

#: The smallest family in the quick tests, and the others in the slow ones.
compiled_families = pytest.mark.parametrize(
    "name", ["falcon", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bloom", "mpt"))]
)


def make_model(name: str, heads: int = HEADS, layers: int = 3, **config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(heads)
        model = MAKERS[name](heads, layers, **config).eval()
        for parameter in model.parameters():
            if parameter.ndim == 2:  # weights large enough for attention to matter
                parameter.data.normal_(0, 0.08)
    return model
