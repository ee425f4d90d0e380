"""Small random models of all families."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ntk_alibi as na
from padded_batches import VOCABULARY, real

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


def independent_logits(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor | None,
    slopes: np.ndarray | Callable[[np.ndarray, int], np.ndarray],
    knee: Any = None,
    log_n: Any = None,
    layers: Any = None,
    own: Any = None,
) -> torch.Tensor:
    """Compute a transformers model in float64 row by row, with attention written out.

    Args:
        model: a BLOOM, an MPT or a Falcon.
        ids: the tokens.
        mask: the padding mask.
        slopes: the slopes of the heads, or what makes them of plain ones and the number of tokens
            of a row, (heads,) or (heads, tokens).
        knee: a pair of its start and its factor: a number, or a function of prefix lengths.
        log_n: training length, strengths of the heads, and whether the bias is multiplied, too.
        layers: the layers with these slopes and this knee; all others have plain slopes.
        own: a function of distances to the numbers that are added to scaled scores, (heads,
            distances), in place of slopes.
    """
    model = copy.deepcopy(model).double()
    heads, transformer = model.config.num_attention_heads, model.transformer
    falcon = model.config.model_type == "falcon"
    embed, blocks, block_of, last = {
        "bloom": lambda: (
            lambda x: transformer.word_embeddings_layernorm(transformer.word_embeddings(x)),
            transformer.h, _bloom_block, transformer.ln_f,
        ),
        "mpt": lambda: (transformer.wte, transformer.blocks, _mpt_block, transformer.norm_f),
        "falcon": lambda: (
            transformer.word_embeddings, transformer.h, _falcon_block, transformer.ln_f
        ),
    }[model.config.model_type]()  # fmt: skip
    logits = torch.zeros(*ids.shape, VOCABULARY, dtype=torch.float64)
    for b, kept in enumerate(real(mask)):
        columns = torch.arange(len(kept))[kept]
        positions = columns if model.config.model_type == "mpt" else torch.arange(len(columns))
        distance = (positions[:, None] - positions).double()
        counts = torch.arange(1, len(columns) + 1).double()
        plain = -torch.from_numpy(na.reference.alibi_slopes(heads))[:, None, None] * distance
        bent = distance
        if knee is not None:
            start, factor = knee
            factor = factor(counts)[:, None] if callable(factor) else factor
            bent = torch.where(distance <= start, distance, start + (distance - start) / factor)
        of_heads = slopes
        if callable(slopes):
            of_heads = slopes(na.reference.alibi_slopes(heads), len(columns))
        scaled = -torch.from_numpy(of_heads).view(heads, -1, 1) * bent
        if own is not None:
            head_dim = model.config.hidden_size // heads
            scaled = own(distance.long().clamp(min=0)) * (head_dim**0.5 if falcon else 1.0)
        factors = torch.ones(heads, len(columns), 1).double()
        if log_n is not None:
            length, strengths, biased = log_n
            excess = torch.log(counts / length) / np.log(length)
            factors = (1 + torch.tensor(strengths)[:, None] * excess).clamp(min=1)[..., None]
            plain, scaled = (x * factors if biased else x for x in (plain, scaled))
        with torch.no_grad():
            x = embed(ids[b][kept])
            for i, block in enumerate(blocks):
                bias = scaled if layers is None or i in layers else plain
                bias = torch.where(distance < 0, -torch.inf, bias)
                x = block_of(block, x, bias, factors)
            logits[b, kept] = model.lm_head(last(x))
    return logits


def _bloom_block(
    block: Any, x: torch.Tensor, bias: torch.Tensor, factors: torch.Tensor
) -> torch.Tensor:
    attention = block.self_attention
    fused = attention.query_key_value(block.input_layernorm(x))
    q, k, v = fused.view(len(x), len(factors), 3, -1).permute(2, 1, 0, 3)
    weights = torch.softmax(factors * (q @ k.mT) / q.shape[-1] ** 0.5 + bias, dim=-1)
    x = x + attention.dense((weights @ v).transpose(0, 1).flatten(1))
    hidden = block.mlp.dense_h_to_4h(block.post_attention_layernorm(x))
    return x + block.mlp.dense_4h_to_h(torch.nn.functional.gelu(hidden, approximate="tanh"))


def _mpt_block(
    block: Any, x: torch.Tensor, bias: torch.Tensor, factors: torch.Tensor
) -> torch.Tensor:
    q, k, v = (
        block.attn.Wqkv(block.norm_1(x)).view(len(x), 3, block.num_heads, -1).permute(1, 2, 0, 3)
    )
    weights = torch.softmax(factors * (q @ k.mT) / q.shape[-1] ** 0.5 + bias, dim=-1)
    x = x + block.attn.out_proj((weights @ v).transpose(0, 1).flatten(1))
    hidden = torch.nn.functional.gelu(block.ffn.up_proj(block.norm_2(x)))
    return x + block.ffn.down_proj(hidden)


def _falcon_block(
    block: Any, x: torch.Tensor, bias: torch.Tensor, factors: torch.Tensor
) -> torch.Tensor:
    """Compute a Falcon block: one head of keys, parallel to the feed-forward part."""
    normed, attention = block.input_layernorm(x), block.self_attention
    fused = attention.query_key_value(normed).view(len(x), block.num_heads + 2, -1).transpose(0, 1)
    q, k, v = fused[:-2], fused[-2], fused[-1]
    weights = torch.softmax((factors * (q @ k.mT) + bias) / q.shape[-1] ** 0.5, dim=-1)
    attended = attention.dense((weights @ v).transpose(0, 1).flatten(1))
    hidden = torch.nn.functional.gelu(block.mlp.dense_h_to_4h(normed))
    return x + attended + block.mlp.dense_4h_to_h(hidden)
