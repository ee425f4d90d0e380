"""Attention over keys and values in int8, compared with float64 attention over the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import NUMPY, UNIT, check, inputs, masked_bias, random


def exact(rows: na.QuantizedRows) -> NDArray[np.float64]:
    """Return the values of quantized rows in float64."""
    return rows.numbers.astype(np.float64) * rows.scales.astype(np.float64)[..., None]


def quantized(*arrays: Any) -> list[na.QuantizedRows]:
    return [na.QuantizedRows.of(x) for x in arrays]


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e-30, 1e30], ids=str)
def test_numbers_are_off_by_half_a_scale(dtype: str, size: float) -> None:
    x = random(0, 2, 3, 40, 20)
    x[0, 0, 0] = x[1, 2, 3, 1:] = 0.0
    x = (x * (size if dtype != "float16" else 1.0)).astype(NUMPY[dtype])
    (rows,) = quantized(x)
    wide = x.astype(np.float64)
    greatest = np.abs(wide).max(axis=-1)
    np.testing.assert_allclose(rows.scales, greatest / 127, rtol=UNIT)
    # Half a scale, and two roundings of at most 127: of the scale and of the quotient.
    assert (np.abs(exact(rows) - wide) <= greatest[..., None] / 127 * (0.5 + 127 * 2 * UNIT)).all()
    np.testing.assert_array_equal(rows.dequantized(), exact(rows).astype(np.float32))
    assert rows.dequantized(NUMPY[dtype]).dtype == NUMPY[dtype]
    assert rows.scales[0, 0, 0] == 0.0


def test_tensors_give_the_values_of_arrays() -> None:
    x = random(0, 2, 3, 40, 20)
    x[0, 0, 1, 2], x[0, 1, 1, 2], x[1, 1, 1] = np.inf, np.nan, 1e-42
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor = torch.from_numpy(x).to(dtype)
        (rows,), (expected,) = quantized(tensor), quantized(tensor.float().numpy())
        np.testing.assert_array_equal(rows.numbers.numpy(), expected.numbers)
        np.testing.assert_array_equal(rows.scales.numpy(), expected.scales)
        assert rows.dequantized(dtype).dtype == dtype
        assert bool(torch.isnan(rows.scales[0, :2, 1]).all())
        assert int(torch.isnan(rows.scales).sum()) == 2


ROWS = np.arange(2)[:, None]
WAYS: dict[str, dict[str, Any]] = {
    "causal": {},
    "window and sinks": {"window": 40, "sink": 3},
    "both sides": {"causal": False},
    "left padding": {"mask": np.arange(300) >= 37 * ROWS},
    "holes": {"mask": (np.arange(300) % 5 != 1) | (ROWS == 0)},
}


SIZES = [
    (1, 300, 64), (2, 300, 20), (1, 300, 128), (5, 300, 64), (70, 300, 33), (200, 300, 64),
    (1, 40, 64), (9, 40, 20),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_against_the_reference(isa: str, size: tuple[int, int, int], way: str) -> None:
    (queries, keys, dim), options = size, dict(WAYS[way])
    mask = options.pop("mask", None)
    mask = None if mask is None else mask[:, :keys]
    bias = na.ALiBi(4, na.NTK(4.0), sides="symmetric" if way == "both sides" else "causal")
    with_mask = masked_bias(bias, queries, keys, **options, mask=mask)
    for dtype in NUMPY:
        query, *rows = inputs(2, 4, 2, queries, keys, dim)
        query = query.astype(NUMPY[dtype])
        key, value = quantized(*rows)
        values = exact(key), exact(value)
        if mask is not None:  # padding is never read
            for x in (key, value):
                x.scales[~np.broadcast_to(mask[:, None], x.scales.shape)] = np.nan
        result = na.attention(
            query, key, value, bias, **options, key_padding_mask=mask, return_logsumexp=True
        )
        check(query, *values, with_mask, result)


def test_rows_of_a_batch_may_share_numbers_but_not_scales(isa: str) -> None:
    query, *rows = inputs(2, 2, 2, 200, 300, 16)
    key, value = (na.QuantizedRows.of(x[:1]) for x in rows)
    factors = np.float32([[[1.0]], [[0.5]]])
    shared = [
        na.QuantizedRows(np.broadcast_to(x.numbers, (2, 2, 300, 16)), x.scales * factors)
        for x in (key, value)
    ]
    output = na.attention(query, *shared, na.ALiBi(2))
    for b in range(2):
        pair = [x[b : b + 1] for x in shared]
        expected = na.attention(query[b : b + 1], *pair, na.ALiBi(2))
        np.testing.assert_array_equal(output[b : b + 1], expected)


def test_other_biases_and_keywords(isa: str) -> None:
    query, *rows = inputs(1, 4, 4, 40, 200, 24)
    key, value = quantized(*rows)
    dequantized = key.dequantized(), value.dequantized()
    options: list[tuple[Any, dict[str, Any]]] = [
        (na.KerpleLog(np.ones(4), np.ones(4)), {}),
        (random(5, 1, 4, 40, 200), {}),
        (None, {"log_n": 50}),
        (na.ALiBi(4), {"rotary": na.RoPE(24)}),
        (None, {"rotary": na.XPOS(24)}),
        (na.ALiBi(4, exempt=2), {}),
    ]
    for bias, keywords in options:
        results, expected = (
            na.attention(query, *pair, bias, **keywords, return_logsumexp=True)
            for pair in ((key, value), dequantized)
        )
        # Products of number and scale are rounded before the dot product, or after it.
        np.testing.assert_allclose(results[0], expected[0], atol=3e-6)
        np.testing.assert_allclose(results[1], expected[1], atol=3e-6)


def test_norms_are_those_of_the_stored_numbers(isa: str) -> None:
    (key,) = quantized(random(0, 2, 3, 200, 33))
    norms = na.KeyNorms()
    for length in (1, 70, 199, 200):
        norms.update(key[:, :, :length])
    # The centre was chosen anew while there was but one block.
    np.testing.assert_allclose(norms.centres, exact(key)[:, :, :70].mean(2), atol=70 * UNIT)
    exact_norms = np.sqrt(((exact(key) - norms.centres[:, :, None]) ** 2).sum(-1))
    for block in range(4):
        greatest = exact_norms[:, :, 64 * block : 64 * block + 64].max(-1)
        np.testing.assert_allclose(norms.norms[:, :, block, 0], greatest, rtol=40 * UNIT)
    key.scales[1, 2, 130] = np.nan
    assert np.isinf(na.KeyNorms().update(key).norms[1, 2, 2, 0])


@pytest.mark.parametrize("queries", [1, 40])
def test_nan_shows_where_it_is_seen(isa: str, queries: int) -> None:
    query, *rows = inputs(1, 2, 2, queries, 100, 16)
    rows[1][0, 0, 99, 3] = np.inf
    output = na.attention(query, *quantized(*rows), na.ALiBi(2))
    assert np.isnan(output[0, 0, -1]).all()
    assert np.isfinite(output[0, 0, :-1]).all()
    assert np.isfinite(output[0, 1]).all()


def test_views_are_read_in_place_or_copied() -> None:
    query, *rows = inputs(2, 2, 2, 1, 100, 16)
    key, value = quantized(*rows)
    for index in (
        (slice(None), slice(None), slice(3, 80)),
        (slice(1), slice(None), slice(0, 90, 3)),
    ):
        pair = [
            na.QuantizedRows(x.numbers[index].copy(), x.scales[index].copy()) for x in (key, value)
        ]
        q = query[index[0]]
        expected = na.attention(q, *pair, na.ALiBi(2))
        np.testing.assert_array_equal(
            na.attention(q, key[index], value[index], na.ALiBi(2)), expected
        )
