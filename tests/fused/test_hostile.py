"""Unusual inputs: byte orders, more queries than keys, views, containers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs
from ntk_alibi.fused.gradients import attention_gradients

QUERY, KEY, VALUE = inputs(1, 2, 2, 6, 6, 8)
BIAS = na.ALiBi(2)


def test_masks_positions_and_biases_of_another_byte_order_are_converted() -> None:
    positions = np.arange(6)
    values = np.random.default_rng(0).standard_normal((2, 6, 6)).astype(np.float32)
    for native, swapped in (
        ({"query_positions": positions}, {"query_positions": positions.astype(">i4")}),
        ({"key_positions": positions}, {"key_positions": positions.astype(">i8")}),
        (
            {"key_padding_mask": positions[None] > 1},
            {"key_padding_mask": (positions[None] > 1) * np.ones(1, ">i2")},
        ),
        ({"bias": values}, {"bias": values.astype(">f4")}),
        (
            {"bias": na.ALiBi(2, slopes=values[:, 0, 0])},
            {"bias": na.ALiBi(2, slopes=values[:, 0, 0].astype(">f4"))},
        ),
        (
            {"bias": na.DistanceTable(values[0, :2])},
            {"bias": na.DistanceTable(values[0, :2].astype(">f4"))},
        ),
    ):
        np.testing.assert_array_equal(
            na.attention(QUERY, KEY, VALUE, window=2, **swapped),
            na.attention(QUERY, KEY, VALUE, window=2, **native),
        )


def test_conjugate_and_negative_views_are_read_as_their_numbers() -> None:
    negative = torch._neg_view(torch.from_numpy(QUERY))
    got = na.attention(negative, torch.from_numpy(KEY), torch.from_numpy(VALUE), BIAS)
    np.testing.assert_array_equal(got.numpy(), na.attention(-QUERY, KEY, VALUE, BIAS))


def test_rows_at_distant_positions_share_a_short_table() -> None:
    """Each row sees only the distances 0 to 2, but the rows are 100 positions apart."""
    at = np.array([[0, 1, 2], [100, 101, 102]])
    arrays = inputs(2, 2, 2, 3, 3, 8)
    table = np.random.default_rng(1).standard_normal((2, 3))
    got = na.attention(*arrays, na.DistanceTable(table), query_positions=at, key_positions=at)
    np.testing.assert_array_equal(got, na.attention(*arrays, na.DistanceTable(table)))


@pytest.mark.parametrize(
    "shape", [(0, 2, 5, 5), (1, 2, 0, 5), (1, 2, 5, 0), (0, 2, 0, 0), (1, 0, 5, 5)]
)
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
def test_no_rows_queries_keys_or_heads(shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    batch, heads, queries, keys = shape
    query, key = np.ones((batch, heads, queries, 8)), np.ones((batch, heads, keys, 8))
    at, there = np.zeros((batch, queries), int), np.zeros((batch, keys), int)
    real = np.ones((batch, keys))
    every: list[dict[str, Any]] = [
        {"query_positions": at, "key_positions": there},
        {"query_positions": at, "rotary": na.XPOS(8)},
        {"query_positions": at, "log_n": 16, "key_padding_mask": real, "window": 3, "sink": 2},
        {"rotary": na.RoPE(8), "key_padding_mask": real, "causal": False},
    ]
    biases: list[Any] = [None]
    if heads:
        biases.append(na.ALiBi(heads, na.DynamicNTK(train_length=2048), sides="symmetric"))
        biases.append(na.BAM(*np.ones((3, heads))))
    for options, bias in itertools.product(every, biases):
        if dtype is None:
            arrays = [x.astype(np.float32) for x in (query, key, key)]
            results = na.attention(*arrays, bias, return_logsumexp=True, **options)
            got = attention_gradients(
                *arrays, *results, arrays[0], bias=bias, bias_gradient=True, **options
            )
            assert got.query.shape == query.shape
            output = results[0]
        else:
            tensors = [torch.from_numpy(x).to(dtype).requires_grad_() for x in (query, key, key)]
            output = na.attention(*tensors, bias, **options)
            output.sum().backward()
            output = output.detach().numpy()
        assert output.shape == query.shape
        assert keys or not output.any()


def test_more_queries_than_keys_say_where_they_are() -> None:
    """In the last columns the first queries would see nothing, and nobody would have said so."""
    many, few = inputs(1, 2, 2, 30, 10, 8)[:2]
    tensor = torch.from_numpy(many)
    kinds: Any = [(many, few), (tensor, torch.from_numpy(few))]
    kinds += [
        (tensor.double(), kinds[1][1].double()),
        (tensor.clone().requires_grad_(), kinds[1][1]),
    ]
    message = (
        "^query_positions must be given for more queries than keys, got 30 queries and 10 keys$"
    )
    padding = {"key_padding_mask": np.ones((1, 10)), "bias": BIAS}
    for query, key in kinds:
        for options in ({}, padding, {"causal": False, "window": 20}, {"log_n": 4}):
            with pytest.raises(ValueError, match=message):
                na.attention(query, key, key, **options)
        given = na.attention(query, key, key, BIAS, query_positions=np.arange(30))
        started = na.attention(query, key, key, BIAS, align="start")
        np.testing.assert_array_equal(given.tolist(), started.tolist())
        assert na.attention(query, key, key, causal=False, window=21).any(-1).all()
    compiled = torch.compile(lambda q, k: na.attention(q, k, k), backend="eager", dynamic=True)
    with pytest.raises(ValueError, match=message):
        compiled(*kinds[1])
    with pytest.raises(ValueError, match=message):
        na.log_n_scale(30, 10, 4)
