"""Fused attention against the reference on every instruction set: sizes, dtypes, long keys.

Masks, padding, positions and biases are in test_attention_properties.py and in tests/biases.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

import ntk_alibi as na
from attention_checks import (
    NUMPY,
    check,
    dense,
    inputs,
    masked_bias,
    visible,
)

SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 4, 2, 33, 65, 16),
    (1, 3, 1, 63, 64, 17),
    (1, 2, 2, 40, 70, 64),
    (2, 6, 3, 5, 300, 80),
    (1, 1, 1, 129, 129, 256),
]


def check_call(arrays: list[Any], bias: Any, expected: NDArray[Any], **options: Any) -> None:
    """Check a call, whose dense bias is expected, with all blocks and with those that matter."""
    for tolerance in (None, 0.0):
        result = na.attention(
            *arrays, bias, **options, skip_tolerance=tolerance, return_logsumexp=True
        )
        check(*arrays, expected, result)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_causal_linear_bias(isa: str, shape: tuple[int, ...], dtype: str) -> None:
    heads, queries, keys = shape[1], shape[3], shape[4]
    bias = na.ALiBi(heads, na.NTK(4.0))
    check_call(inputs(*shape, dtype=dtype), bias, masked_bias(bias, queries, keys))


@pytest.mark.parametrize(("length", "known"), [(20, 13), (90, 70)], ids=["one block", "tiles"])
def test_nothing_of_the_future_leaks(isa: str, length: int, known: int) -> None:
    query, key, value = inputs(1, 2, 2, length, length, 24)
    before = na.attention(query, key, value, na.ALiBi(2))
    for poison in (np.nan, np.inf):
        key[:, :, known:], value[:, :, known:] = poison, poison
        after = na.attention(query, key, value, na.ALiBi(2))
        np.testing.assert_array_equal(after[:, :, :known], before[:, :, :known])
        assert np.isnan(after[:, :, known:]).all()


def test_dynamic_scalings_count_no_holes_of_given_positions() -> None:
    """MPT's positions count holes of the padding mask; its slopes do not."""
    query, key, value = inputs(2, 4, 4, 60, 60, 16)
    mask = np.random.default_rng(3).random((2, 60)) < 0.7
    mask[1, :9] = False
    positions = np.maximum(np.arange(60) - mask.argmax(axis=1)[:, None], 0)
    scaling = na.DynamicNTK(4.0, 16)
    given = {"key_padding_mask": mask, "query_positions": positions, "key_positions": positions}
    result = na.attention(query, key, value, na.ALiBi(4, scaling), **given)
    slopes = na.alibi_slopes(4, scaling, mask.sum(axis=1))
    expected = na.attention(query, key, value, na.ALiBi(4, slopes=slopes), **given)
    kept = np.broadcast_to(mask[:, None], result.shape[:3])
    np.testing.assert_array_equal(result[kept], expected[kept])


def test_positions_of_a_million_lose_nothing(isa: str) -> None:
    query, key, value = inputs(1, 2, 2, 40, 90, 16, dtype="bfloat16")
    far = 10**6
    shifted = na.attention(
        query,
        key,
        value,
        na.ALiBi(2),
        query_positions=np.arange(50, 90) + far,
        key_positions=np.arange(90) + far,
    )
    np.testing.assert_array_equal(shifted, na.attention(query, key, value, na.ALiBi(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torch_in_torch_out_and_agrees_with_sdpa(dtype: torch.dtype) -> None:
    query, key, value = (torch.from_numpy(x).to(dtype) for x in inputs(2, 4, 4, 90, 90, 32))
    output, logsumexp = na.attention(query, key, value, na.ALiBi(4), return_logsumexp=True)
    mask = na.ALiBi(4).tensor(90, 90, torch.float32)
    wide = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), mask)
    assert output.dtype == dtype
    assert isinstance(logsumexp, torch.Tensor)
    atol = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype] * 4
    torch.testing.assert_close(output.float(), wide, atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("dim", "dtype", "options"),
    [
        (64, "float32", {}),
        (64, "bfloat16", {}),
        (64, "float16", {}),
        (21, "float32", {"window": 9000}),
        (200, "bfloat16", {"window": 100, "sink": 7}),
        (8, "float32", {"causal": False}),
    ],
    ids=str,
)
def test_few_queries_on_many_keys(isa: str, dim: int, dtype: str, options: Any) -> None:
    keys = 9500  # two parts
    bias = na.ALiBi(4, na.NTK(8.0), sides="symmetric")
    expected = masked_bias(bias, 2, keys, **options)
    check_call(inputs(1, 4, 2, 2, keys, dim, dtype=dtype), bias, expected, **options)


def test_few_queries_with_padding_and_far_sinks(isa: str) -> None:
    query, key, value = inputs(2, 2, 2, 1, 9000, 32)
    key[:, :, 5] = 40.0 * query[:, :, 0]
    mask = np.ones((2, 9000), int)
    mask[1, :300], mask[1, 4000:4100] = 0, 0
    key[1, :, :300] = np.nan
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    last = positions[:, -1:]
    bias = dense(na.ALiBi(2), last, positions)
    expected = np.where(visible(last, positions, mask=mask), bias, -np.inf)
    arrays = [query, key, value]
    check_call(arrays, na.ALiBi(2), expected, key_padding_mask=mask, key_positions=positions)


def test_one_query_of_a_steep_head_reads_little_of_a_long_cache() -> None:
    query, key, value = inputs(1, 8, 8, 1, 65536, 16)
    _, stats = na.attention(query, key, value, na.ALiBi(8), return_stats=True)
    assert stats.visited[0, 0] <= 3
    assert (stats.visible == 1024).all()
    assert stats.share[0, -1] < 0.2


def test_kept_key_norms_change_nothing_but_the_time() -> None:
    query, key, value = inputs(2, 4, 2, 3, 700, 24)
    norms = na.KeyNorms()
    for length in (1, 63, 64, 65, 400, 700):
        part = query[:, :, :1], key[:, :, :length], value[:, :, :length]
        norms.update(part[1])
        expected = na.attention(*part, na.ALiBi(4), return_logsumexp=True)
        result = na.attention(*part, na.ALiBi(4), key_norms=norms, return_logsumexp=True)
        np.testing.assert_array_equal(result[0], expected[0])
        np.testing.assert_array_equal(result[1], expected[1])
    symmetric = na.ALiBi(4, sides="symmetric")
    result = na.attention(query, key, value, symmetric, causal=False, key_norms=norms)
    expected = na.attention(query, key, value, symmetric, causal=False)
    np.testing.assert_allclose(result, expected, atol=1e-6)
