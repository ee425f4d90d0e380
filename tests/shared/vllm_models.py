"""Models for tests of vLLM, in folders, with prompts and what transformers computes for them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

import ntk_alibi as na
from ntk_alibi.models.loading import nano_bloom_path

#: vLLM's kernel for CPUs has no smaller heads.
HEAD_SIZE = 32

VOCABULARY, NEW_TOKENS = 96, 16

#: Two prompts begin with the same tokens, which the second then has from the cache.
SHARED, LENGTHS = 300, (500, 450, 400)


def prompts(vocabulary: int = VOCABULARY) -> list[list[int]]:
    """Return three prompts; two of them have their first tokens in common."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, vocabulary, (n,), generator=generator).tolist() for n in LENGTHS]
    rows[1][:SHARED] = rows[0][:SHARED]
    return rows


def _large(model: Any) -> Any:
    """Make weights large enough for attention to matter, and so that likeliest tokens stand out."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0, 0.15)
    return model.eval()


def bloom(heads: int) -> Any:
    config = transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=HEAD_SIZE * heads, n_layer=3, n_head=heads,
        bos_token_id=1, eos_token_id=2, seq_length=256,
    )  # fmt: skip
    model = _large(transformers.BloomForCausalLM(config))
    # vLLM loads no BLOOM with an embedding and a head of different weights. A random model
    # would always repeat its last token if the last norm did not turn its output.
    model.transformer.ln_f.weight.data.normal_()
    return model


def falcon(heads: int, **options: Any) -> Any:
    config = transformers.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=HEAD_SIZE * heads, num_hidden_layers=3,
        num_attention_heads=heads, alibi=True, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, max_position_embeddings=256, **options,
    )  # fmt: skip
    return _large(transformers.FalconForCausalLM(config))


def nano_bloom() -> Any:
    """Return the embedded model; its heads have 16 channels."""
    return transformers.BloomForCausalLM.from_pretrained(nano_bloom_path()).eval()


def with_larger_heads(model: Any) -> Any:
    """Return the same BLOOM with heads of twice the channels, for kernels without small heads.

    Its hidden states are the model's, twice: a norm of (x, x) is the norm of x, twice. The
    other channels of queries, keys, values and feed-forward parts are 0.
    """
    small = model.config
    heads, size = small.n_head, small.hidden_size
    config = transformers.BloomConfig(**{**small.to_dict(), "hidden_size": 2 * size})
    large = transformers.BloomForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in large.parameters():
            parameter.zero_()
        for name, target in large.transformer.named_parameters():
            source = model.transformer.get_parameter(name)
            if "query_key_value" in name:
                source = source.unflatten(0, (heads, 3, -1)).clone()
                source[:, 0] *= math.sqrt(2.0)  # attention divides by the root of the channels
                parts = target.unflatten(0, (heads, 3, -1))
                _fill(parts[:, :, : source.shape[2]], source)
            elif name.endswith("self_attention.dense.weight"):
                inputs = target.unflatten(1, (heads, -1))[..., : size // heads]
                inputs.copy_(source.unflatten(1, (heads, -1)).repeat(2, 1, 1))
            elif "dense_h_to_4h" in name:
                _fill(target[: len(source)], source)
            elif name.endswith("dense_4h_to_h.weight"):
                target[:, : source.shape[1]].copy_(source.repeat(2, 1))
            elif "word_embeddings." in name:
                target.copy_(source.repeat(1, 2))
            else:  # biases and norms; each half of the last norm gives half of the logits
                target.copy_(source.repeat(2) * (0.5 if name.startswith("ln_f") else 1.0))
    return large


def _fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy weights for inputs x to weights for inputs (x, x), or biases."""
    if source.ndim == target.ndim and source.shape != target.shape:
        target[..., : source.shape[-1]].copy_(source)
    else:
        target.copy_(source)


class Expected(NamedTuple):
    """The answers of a patched model to the prompts.

    Attributes:
        tokens: the tokens of greedy decoding.
        token_logprobs: their log-probabilities.
        prompt_logprobs: of the prompt's tokens, but for the first.
    """

    tokens: list[list[int]]
    token_logprobs: list[list[float]]
    prompt_logprobs: list[list[float]]


def expected(model: Any, scaling: Any, rows: list[list[int]]) -> Expected:
    """Return what transformers and the patch compute, without a cache."""
    found = Expected([], [], [])
    for row in rows:
        ids = torch.tensor([row])
        with na.patch(model, scaling), torch.no_grad():
            ids = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS,
                do_sample=False, pad_token_id=0, eos_token_id=None,
            )  # fmt: skip
            logprobs = model(ids).logits.float().log_softmax(-1)[0, :-1]
        chosen = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
        found.tokens.append(ids[0, len(row) :].tolist())
        found.token_logprobs.append(chosen[len(row) - 1 :])
        found.prompt_logprobs.append(chosen[: len(row) - 1])
    return found


def save(model: Any, folder: Path) -> Path:
    """Store a model where vLLM finds it."""
    model.save_pretrained(folder)
    return folder
