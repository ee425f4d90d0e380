"""Edges of the ranges: NaN, overflow, rounded logsumexps, steep slopes, the greatest window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi.fused.gradients import attention_gradients

#: NaN with low bits: 0x7fc00001, and memory full of ones.
LOW_NAN = [np.uint32(0x7FC00001), np.uint32(0xFFFFFFFF)]


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("bits", LOW_NAN)
def test_nan_of_any_bits_stays_nan(isa: str, bits: np.uint32, queries: int) -> None:
    """Without AVX-512, 2^x made a number of a NaN with low bits."""
    query, key, value, gradient = random_rows(40, 40, 40, 40)
    key[0, 0, 5, 3] = bits.view(np.float32)
    options: Any = {"causal": False}
    query, gradient = query[:, :, :queries], gradient[:, :, :queries]
    results = na.attention(query, key, value, None, return_logsumexp=True, **options)
    assert np.isnan(results[0]).all()
    assert np.isnan(results[1]).all()
    gradients = attention_gradients(query, key, value, *results, gradient, **options)
    assert all(np.isnan(x).all() for x in (gradients.query, gradients.key, gradients.value))


@pytest.mark.parametrize("queries", [1, 4, 40])
def test_nan_in_dense_numbers_reaches_the_queries_that_see_it(isa: str, queries: int) -> None:
    """The key had no weight instead."""
    query, key, value = random_rows(queries, 40, 40)
    bias = np.zeros((1, 1, queries, 40), np.float32)
    bias[0, 0, -1, 1] = np.nan
    got = na.attention(query, key, value, bias)
    assert np.isnan(got[0, 0, -1]).all()
    assert np.isfinite(got[0, 0, :-1]).all()
    tensors = [torch.from_numpy(x).double() for x in (query, key, value, bias)]
    assert bool(na.attention(*tensors)[0, 0, -1].isnan().all())


@pytest.mark.parametrize("tensors", [False, True])
def test_rows_that_see_nothing_leave_no_nan_in_gradients(isa: str, tensors: bool) -> None:
    """Padded queries may hold anything; weights of 0 times NaN had reached all keys."""
    query, key, value, gradient = random_rows(100, 100, 100, 100, heads=2)
    real = np.ones((1, 100), np.uint8)
    real[:, :10] = 0
    padded = [x.copy() for x in (query, key, value, gradient)]
    for x in padded:
        x[:, :, :10] = np.nan
    gradient[:, :, :10] = 0.0
    expected, got = (
        _gradients(*rows, tensors=tensors, bias=na.ALiBi(2), key_padding_mask=real)
        for rows in ((query, key, value, gradient), padded)
    )
    for want, have in zip(expected, got, strict=True):
        np.testing.assert_array_equal(have[:, :, 10:], want[:, :, 10:])


def test_a_product_that_overflows_has_no_effect_without_weight(isa: str) -> None:
    """do.v of a far key is infinite, and its weight 0."""
    query, key, value, gradient = random_rows(192, 192, 192, 192)
    value[0, 0, 0], far = 3e38, value.copy()
    far[0, 0, 0] = 0.0
    rows = query[:, :, 128:], key
    results = [
        _gradients(
            *rows, values, 10 * gradient[:, :, 128:], tensors=False, skip_tolerance=None,
            bias=na.ALiBi(1, slopes=np.array([4.0])),
        )
        for values in (value, far)
    ]  # fmt: skip
    for got, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("distance", [10**5, 10**7, 2**30])
def test_gradients_are_exact_where_float32_rounds_the_logsumexp(isa: str, distance: int) -> None:
    """At 2^30 tokens it is rounded by up to 32, and weights were wrong by e^32."""
    query, key, value, gradient = random_rows(5, 5, 5, 5)
    places = {"query_positions": np.arange(5) + distance, "key_positions": np.arange(5)}
    bias = na.ALiBi(1, slopes=np.array([0.7]))
    results = na.attention(query, key, value, bias, return_logsumexp=True, **places)
    of = attention_gradients(query, key, value, *results, gradient, bias=bias, **places)
    near = _gradients(query, key, value, gradient, tensors=True, bias=bias, **places)
    for got, expected in zip((of.query, of.key, of.value), near, strict=True):
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="must be float64, or the logsumexp of the same call"):
        attention_gradients(
            query, key, value, results[0], results[1] - 1e6, gradient, bias=bias, **places
        )


@pytest.mark.parametrize("slope", [4.0, 1e4, 1e6])
@pytest.mark.parametrize("distance", [60, 64, 65])
def test_keys_at_one_distance_keep_their_scores_under_a_steep_slope(
    isa: str, distance: int, slope: float
) -> None:
    query = np.ones((1, 1, 1, 1), np.float32)
    key = np.array([2.0, 0.0], np.float32).reshape(1, 1, 2, 1)
    value = np.array([0.0, 1.0], np.float32).reshape(1, 1, 2, 1)
    got = na.attention(
        query, key, value, na.ALiBi(1, slopes=np.array([slope])),
        query_positions=np.array([distance]), key_positions=np.array([0, 0]),
    )  # fmt: skip
    np.testing.assert_allclose(got, 1 / (1 + np.exp(2.0)), rtol=2.0**-20)


@pytest.mark.parametrize("tensors", [False, True])
def test_the_greatest_window_hides_the_greatest_distance(isa: str, tensors: bool) -> None:
    """It was taken for no window."""
    most = 2**31 - 1
    zeros = np.zeros((1, 1, 2, 4), np.float32)
    value = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    rows: Any = (zeros[:, :, :1], zeros, value)
    if tensors:
        rows = tuple(map(torch.from_numpy, rows))
    places = {"query_positions": np.array([most]), "key_positions": np.array([0, most])}
    got = na.attention(*rows, window=most, **places)
    np.testing.assert_array_equal(np.asarray(got)[0, 0, 0], value[0, 0, 1])
    np.testing.assert_array_equal(np.asarray(na.attention(*rows, **places))[0, 0, 0], [2, 3, 4, 5])


def random_rows(*lengths: int, heads: int = 1) -> list[Any]:
    """Return float32 rows of 16 channels."""
    random = np.random.default_rng(0)
    return [random.standard_normal((1, heads, length, 16), np.float32) for length in lengths]


def _gradients(
    query: Any, key: Any, value: Any, gradient: Any, *, tensors: bool, **options: Any
) -> list[Any]:
    """Return the gradients of query, key and value."""
    if not tensors:
        results = na.attention(query, key, value, return_logsumexp=True, **options)
        of = attention_gradients(query, key, value, *results, gradient, **options)
        return [of.query, of.key, of.value]
    rows = [torch.from_numpy(x.copy()).requires_grad_() for x in (query, key, value)]
    na.attention(*rows, **options).backward(torch.from_numpy(gradient.copy()))
    return [x.grad.numpy() for x in rows]
