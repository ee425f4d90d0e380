"""Small random BLOOMs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from padded_batches import VOCABULARY, batch

#: Float32 sums of a few hundred terms, through three layers, at logits of about 1.
LOGITS = {"atol": 2e-5, "rtol": 0.0}

attentions = pytest.mark.parametrize("attention", ["eager", "fused"])


def make_model(heads: int = 8, **config: Any) -> BloomForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(heads)
        sizes = {"vocab_size": VOCABULARY, "hidden_size": 16 * heads, "n_layer": 3, "n_head": heads}
        # Tied embeddings would make a random model repeat its last token, whatever it attends to.
        config = {**sizes, "tie_word_embeddings": False, **config}
        model = BloomForCausalLM(BloomConfig(**config)).eval()
        for parameter in model.parameters():
            if parameter.ndim == 2:  # weights large enough for attention to matter
                parameter.data.normal_(0, 0.08)
    return model


@pytest.fixture(scope="module")
def blooms() -> dict[int, BloomForCausalLM]:
    return {heads: make_model(heads) for heads in (8, 12)}


@pytest.fixture(scope="module")
def bloom_ids() -> torch.Tensor:
    return batch()
