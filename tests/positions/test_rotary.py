"""Rotary embeddings against the papers' sums, transformers and published code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.draw import Draw
from fuzz.drawn.rotations import drawn_rotation
from fuzz.oracle.products import Rotated
from hypothesis import given
from hypothesis import strategies as st

import ntk_alibi as na
from attention_checks import NUMPY, UNIT, check, inputs, random, visible
from ntk_alibi.fused.parts import LEAST_LOG_FACTOR
from rotary_scores import ROTARY, products, reference_scores


@given(seed=st.integers(0, 2**32))
def test_the_fuzzers_rotations_are_the_papers(seed: int) -> None:
    """`tests/test_fuzz.py` compares rotated attention with them on every instruction set."""
    draw = Draw("rotations", seed)
    dim = draw.integer(2, 40)
    rotary, rotation = drawn_rotation(draw, dim, causal=True)
    query, key = draw.normal(1, 2, 5, dim), draw.normal(1, 2, 9, dim)
    q, k = np.arange(20, 25), np.arange(9) * 2
    distance = (q[:, None] - k)[None, None].astype(np.float64)
    found = Rotated(query, key, 1.0, rotation, distance)
    error = np.abs(found.values - products(rotary, query, key, q, k))
    assert (error <= 1e-12 * found.sizes + 1e-12)[0, 0, distance[0, 0] >= 0].all()


@pytest.mark.parametrize("dtype", list(NUMPY))
@pytest.mark.parametrize("name", ROTARY)
def test_positions_of_a_million_lose_nothing(name: str, dtype: str) -> None:
    arrays = inputs(1, 2, 1, 70, 120, 32, dtype=dtype)
    rotary = ROTARY[name](32)
    near = np.arange(50, 120), np.arange(120)
    far = tuple(x + 1_000_003 for x in near)
    seen = visible(*near)
    # The reference uses the near positions, since the scores depend on distances only.
    scores, scale = reference_scores(arrays, rotary, *near, seen)
    positions = {"query_positions": far[0], "key_positions": far[1]}
    bias = np.where(seen, 0.0, -np.inf)
    result = na.attention(*arrays, rotary=rotary, return_logsumexp=True, **positions)
    check(*arrays, bias, result, scale, scores=scores)
    tensors = [torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype)) for x in arrays]
    other = na.attention(*tensors, rotary=rotary, return_logsumexp=True, **positions)
    check(*arrays, bias, (other[0].float().numpy().astype(NUMPY[dtype]), other[1].numpy()), scale,
          scores=scores)  # fmt: skip


def test_xpos_reaches_from_the_first_token_to_the_millionth() -> None:
    arrays = inputs(1, 2, 2, 5, 400, 16)
    k = np.unique(np.geomspace(1, 1_100_001, 4000).astype(np.int64) - 1)
    k = np.concatenate([k[:: len(k) // 396][:396], [1_100_001, 1_100_002, 1_100_003, 1_100_004]])
    q = np.array([3, 1000, 512_000, 1_100_003, 1_100_004])
    rotary, seen = na.XPOS(16), visible(q, k)
    assert len(k) == 400
    scores, scale = reference_scores(arrays, rotary, q, k, seen)
    result = na.attention(
        *arrays, rotary=rotary, query_positions=q, key_positions=k, return_logsumexp=True
    )
    check(*arrays, np.where(seen, 0.0, -np.inf), result, scale, scores=scores)


def test_xpos_over_many_centres_is_the_papers_sum() -> None:
    """The queries are four runs of at most 205, the last columns of 1100."""
    arrays, rotary = inputs(1, 1, 1, 800, 1100, 4), na.XPOS(4, scale_base=64.0)
    q, k = np.arange(300, 1100), np.arange(1100)
    scores, scale = reference_scores(arrays, rotary, q, k, visible(q, k))
    for options in ({}, {"window": 400}, {"causal_block": 128, "sink": 4}):
        seen = visible(q, k, **options)
        result = na.attention(*arrays, rotary=rotary, return_logsumexp=True, **options)
        check(*arrays, np.where(seen, 0.0, -np.inf), result, scale, scores=scores)


def test_decayed_keys_count_with_a_score_of_zero() -> None:
    """Far keys are not hidden: their score is 0, so the output is the mean of the values."""
    rotary = na.XPOS(2)  # one pair, the fastest
    distance = math.ceil(-LEAST_LOG_FACTOR / rotary.fastest_rate) + 1
    query, value = random(0, 1, 1, 1, 2), random(1, 1, 1, 7, 2)
    key = 1e6 * random(2, 1, 1, 7, 2)
    output, logsumexp = na.attention(
        query, key, value, rotary=rotary, query_positions=np.array([distance + 6]),
        key_positions=np.arange(7), return_logsumexp=True,
    )  # fmt: skip
    np.testing.assert_allclose(output[0, 0, 0], value[0, 0].mean(axis=0), atol=8 * UNIT * 4)
    np.testing.assert_allclose(logsumexp[0, 0, 0], math.log(7), rtol=4 * UNIT)


def test_xpos_is_the_published_code_where_that_does_not_overflow() -> None:
    """microsoft/torchscale has scale = ((2m + 0.4 D) / (1.4 D))^(n / 512), n from the middle."""
    arrays, length = inputs(1, 2, 2, 200, 200, 32), 200
    n = torch.arange(-length // 2, length - length // 2)[:, None]
    scale = ((torch.arange(0, 32, 2).double() + 0.4 * 32) / (1.4 * 32)) ** (n / 512)
    angle = n * 10000.0 ** (-torch.arange(16).double() / 16)

    def published(x: Any, scale: torch.Tensor) -> torch.Tensor:
        x = torch.from_numpy(x).double()
        every_two = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        sin, cos = ((f(angle) * scale).repeat_interleave(2, 1) for f in (torch.sin, torch.cos))
        return x * cos + every_two * sin

    scores = (published(arrays[0], scale) @ published(arrays[1], 1 / scale).mT).numpy()
    seen = visible(np.arange(length), np.arange(length))
    result = na.attention(*arrays, rotary=na.XPOS(32), return_logsumexp=True)
    scale_of_scores = 1 / math.sqrt(32)
    check(
        *arrays,
        np.where(seen, 0.0, -np.inf),
        result,
        scores=np.where(seen, scores, 0) * scale_of_scores,
    )


@pytest.mark.parametrize("partial", [None, 16])
def test_rotate_is_transformers(partial: int | None) -> None:
    """Llama rotates all channels, GPT-NeoX some; transformers computes angles in float32."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    dim, length = partial or 64, 2000
    config = LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, max_position_embeddings=4096)
    x = torch.randn(2, 4, length, 64, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(length)[None]
    cos, sin = LlamaRotaryEmbedding(config)(x, positions)
    theirs, _ = apply_rotary_pos_emb(x[..., :dim], x[..., :dim], cos, sin)
    theirs = torch.cat([theirs, x[..., dim:]], dim=-1)
    mine = na.RoPE(64, layout="halves", rotary_dim=partial).rotate(x)
    # their frequencies are off by at most 3 u (a power and a quotient), their angles by one more
    off = 4 * UNIT * length + 4 * UNIT
    assert float((mine - theirs).abs().max()) <= off * float(2 * x.abs().max())
    assert torch.equal(mine[:, :, :1], x[:, :, :1])
    np.testing.assert_array_equal(
        na.RoPE(64, layout="halves", rotary_dim=partial).rotate(x.numpy()), mine.numpy()
    )


def test_stretched_is_the_papers_at_other_positions_or_another_base() -> None:
    x = np.random.default_rng(7).standard_normal((1, 1, 40, 16))
    positions = np.arange(40)
    interpolated = na.RoPE(16).stretched(na.Interpolation(4.0)).rotate(x)
    ntk = na.RoPE(16).stretched(na.NTK(4.0)).rotate(x)
    base = na.reference.rope_ntk_base(10000.0, 4.0, 16)
    for mine, theirs in (
        (interpolated, na.reference.rope(x, positions / 4)),
        (ntk, na.reference.rope(x, positions, base)),
    ):  # float64: angles up to 40 with errors of a few of their last bits
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=40 * 8 * 2.0**-53 * np.abs(x).max())


@pytest.mark.parametrize(("kind", "scaling"), [("linear", na.Interpolation), ("dynamic", na.NTK)])
def test_stretched_is_transformers(kind: str, scaling: Any) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": kind, "factor": 8.0 if kind == "linear" else 1.0, "rope_theta": 10000.0}
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=1, max_position_embeddings=128, rope_parameters=rope
    )
    # their dynamic rule at 8 training lengths is NTK with a = 8
    theirs, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=1024)
    ones = np.tile([1.0, 0.0], 32)[None, None, None]
    turned = na.RoPE(64).stretched(scaling(8.0)).rotate(ones, np.array([1]))[0, 0, 0]
    mine = np.arctan2(turned[1::2], turned[0::2])
    np.testing.assert_allclose(mine, theirs.numpy(), rtol=8 * UNIT)
