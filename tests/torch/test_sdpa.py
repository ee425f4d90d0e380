"""Attention through torch's kernel against the float64 reference, forward and backward."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi.torch import sdpa

#: Shapes (queries, keys): square, with a cache, one query, around the chunk of 64 set below.
SHAPES = [(1, 1), (5, 5), (1, 70), (7, 70), (64, 64), (65, 65), (130, 200)]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "QUERY_CHUNK", 64)


def inputs(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(queries * 1000 + keys)
    shapes = [(2, 6, queries, 16), (2, 6, keys, 16), (2, 6, keys, 16)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def slopes_of(kind: str, queries: int) -> torch.Tensor:
    """Return slopes (1 or batch, heads, 1 or queries)."""
    if kind == "per head":
        return torch.from_numpy(na.alibi_slopes(6))[None, :, None]
    if kind == "per row":
        scaling = na.DynamicNTK(1.0, 8)
        return torch.from_numpy(na.alibi_slopes(6, scaling, [10, 90]))[:, :, None]
    scaling = na.DynamicNTK(1.0, 8, per="query")
    prefixes = np.arange(queries)[None] + 5
    return torch.from_numpy(na.alibi_slopes(6, scaling, prefixes))


def reference(q, k, v, slopes, scale):  # type: ignore[no-untyped-def]
    queries, keys = q.shape[2], k.shape[2]
    slopes = np.broadcast_to(slopes.numpy(), (slopes.shape[0], 6, queries))
    bias = na.reference.linear_bias(slopes, np.full(6, np.inf), queries, keys)
    return na.reference.attention(*(x.double().detach() for x in (q, k, v)), bias, scale)[0]


@pytest.mark.parametrize("kind", ["per head", "per row", "per query"])
@pytest.mark.parametrize(("queries", "keys"), SHAPES)
def test_float32(kind: str, queries: int, keys: int) -> None:
    q, k, v = inputs(queries, keys)
    slopes = slopes_of(kind, queries)
    got = sdpa.causal_linear_attention(q, k, v, slopes, scale=0.3)
    # Scores reach about 100; torch's exp has 20 ulp. Per query the bias is a product of the dot
    # product and is rounded relative to slope * chunk, up to 64 * 2^-24 here.
    np.testing.assert_allclose(got.numpy(), reference(q, k, v, slopes, 0.3), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", ["per head", "per query"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_inputs_keep_exact_distances(kind: str, dtype: torch.dtype) -> None:
    q, k, v = inputs(130, 400, dtype)
    slopes = slopes_of(kind, 130)
    got = sdpa.causal_linear_attention(q, k, v, slopes, scale=0.25)
    assert got.dtype == dtype
    # Weights and outputs are rounded to the dtype; an absolute bf16 bias would be off by 1.
    expected = reference(q, k, v, slopes, 0.25)
    np.testing.assert_allclose(
        got.double().numpy(), expected, atol=8 * torch.finfo(dtype).eps, rtol=0
    )


@pytest.mark.parametrize("kind", ["per head", "per query"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (7, 70), (130, 200)])
def test_gradients_are_those_of_plain_attention(kind: str, queries: int, keys: int) -> None:
    ours = [x.requires_grad_() for x in inputs(queries, keys)]
    plain = [x.detach().double().requires_grad_() for x in ours]
    slopes = slopes_of(kind, queries)
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None]
    bias = torch.where(distance >= 0, -slopes.double()[..., None] * distance, -math.inf)
    q, k, v = plain
    expected = torch.softmax(0.3 * q @ k.transpose(2, 3) + bias, dim=-1) @ v
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected * weight).sum().backward()
    (sdpa.causal_linear_attention(*ours, slopes, scale=0.3) * weight).sum().backward()
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=5e-5, rtol=0)


def test_no_mask_of_all_pairs_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "QUERY_CHUNK", 1024)
    q, k, v = (torch.randn(1, 8, 4096, 16) for _ in range(3))
    slopes = torch.from_numpy(na.alibi_slopes(8))[None, :, None]
    with torch.profiler.profile(profile_memory=True) as profile:
        sdpa.causal_linear_attention(q, k, v, slopes, scale=0.25)
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < 4096 * 4096  # bytes; a mask of all pairs has 4 a pair and head


def test_dropout_drops() -> None:
    q, k, v = inputs(40, 40)
    slopes = slopes_of("per head", 40)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = sdpa.causal_linear_attention(q, k, v, slopes, scale=0.3, dropout=0.5)
    kept = sdpa.causal_linear_attention(q, k, v, slopes, scale=0.3)
    assert (dropped - kept).abs().max() > 0.1
    assert dropped.isfinite().all()
