"""Linear biases with a knee: values far away, equal bits where they must be, and other calls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import UNIT, distances, each_number_of_threads, inputs
from ntk_alibi.fused.gradients import attention_gradients

HEADS = 6
queries = pytest.mark.parametrize("count", [1, 2, 70])


def written(
    knee: tuple[int, float], d: NDArray[np.float64], *, causal: bool
) -> NDArray[np.float64]:
    """Return the bias at distances (1 or batch, 1, queries, keys), by its formula."""
    far = np.maximum(np.abs(d) - knee[0], 0.0)
    compressed = np.minimum(np.abs(d), knee[0]) + far / knee[1]
    bias = -na.reference.alibi_slopes(HEADS)[:, None, None] * compressed
    return np.where(causal & (d < 0), -np.inf, bias)


@queries
@pytest.mark.parametrize("away", [-70, 90, 5000, 10**6, 10**9])
@pytest.mark.parametrize("before", [-1000, 0, 60])
def test_keys_that_are_all_far_away(isa: str, count: int, away: int, before: int) -> None:
    """The knee is among the keys, before or behind them; only differences of the bias are small."""
    query, key, value = inputs(1, HEADS, 2, count, 200, 16)
    at_queries, at_keys = np.arange(count) + 200 + away, np.arange(200)
    if away < 0:
        at_queries = np.arange(count)
        at_keys = at_keys - away + count
    knee = (max(abs(away) + before, 0), 9.0)
    bias = na.ALiBi(HEADS, na.Knee(*knee), sides="symmetric")
    places = {"query_positions": at_queries, "key_positions": at_keys}
    output, log = na.attention(
        query, key, value, bias, causal=False, **places, return_logsumexp=True
    )
    dense_bias = written(knee, distances(at_queries, at_keys), causal=False)
    top = dense_bias.max(axis=-1, keepdims=True)
    wide = np.asarray(log, np.float64)
    # the greatest bias is added to the logsumexp at the end, which float32 then rounds
    allowed = 2 * UNIT * np.abs(top[..., 0])
    what = na.reference.attention(
        query, *(np.repeat(x, 3, axis=1) for x in (key, value)), bias=dense_bias - top
    )
    np.testing.assert_allclose(output, what[0], atol=4e-6)
    assert (np.abs(wide - (what[1] + top[..., 0])) <= allowed + 4e-6).all()


@queries
@pytest.mark.parametrize("causal", [True, False])
def test_before_the_knee_every_bit_is_that_of_the_linear_bias(
    isa: str, count: int, causal: bool
) -> None:
    arrays = inputs(1, HEADS, 2, count, 500, 24)
    plain = na.ALiBi(HEADS, sides="causal" if causal else "symmetric")
    for knee in (na.Knee(500, 28.0), na.Knee(2**31 - 1, math.inf), na.Knee(7, 1.0)):
        with_knee = na.ALiBi(HEADS, knee, sides=plain.sides)  # type: ignore[arg-type]
        results = [
            na.attention(*arrays, bias, causal=causal, return_logsumexp=True, skip_tolerance=None)
            for bias in (plain, with_knee)
        ]
        for a, b in zip(*results, strict=True):
            if knee.factor == 1.0:  # two products in place of one
                np.testing.assert_allclose(a, b, atol=2e-6)
            else:
                np.testing.assert_array_equal(a, b)


def test_results_have_the_same_bits_for_any_number_of_threads(isa: str) -> None:
    query, key, value = inputs(1, 4, 2, 300, 900, 16)
    bias = na.ALiBi(4, na.Knee(100, 28.0))
    found = []
    for _ in each_number_of_threads(1, 2, 3):
        output, log = na.attention(query, key, value, bias, return_logsumexp=True)
        gradients = attention_gradients(
            query, key, value, output, log, np.ones_like(output), bias=bias, bias_gradient=True
        )
        found.append([output, log, *(x for x in vars(gradients).values() if np.ndim(x))])
    assert len(found[0]) == 9
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
