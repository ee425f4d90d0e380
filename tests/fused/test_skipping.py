"""Certified skipping against inputs that defeat heuristics: the error is within the certificate.

Each call is compared with the same call without skipping, which has the same errors of scores, so
that these cannot hide the effect of skipping. Other biases, half types and grouped heads are in the
fuzzer's kind "certificate" (tests/test_fuzz.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import NUMPY, ROUNDING, UNIT, inputs

TOLERANCES = (2.0**-4, 2.0**-9, 0.0)


@cache
def adversaries(
    queries: int, keys: int, dim: int, kv_heads: int = 4
) -> dict[str, list[NDArray[Any]]]:
    """Return queries of four heads, keys and values; all finite in float16."""
    query, key, value = inputs(1, 4, kv_heads, queries, keys, dim)
    last = query[:, :: 4 // kv_heads, -1]
    huge, sinks, growing = key.copy(), key.copy(), key.copy()
    huge[:, :, 3] = 60.0 * last
    sinks[:, :, :4] *= 20.0
    growing *= np.linspace(30.0, 0.1, keys)[:, None].astype(np.float32)
    offset = np.random.default_rng(9).standard_normal((1, kv_heads, 1, dim)).astype(np.float32)
    along = np.repeat(offset, 4 // kv_heads, axis=1) * (-1.0) ** np.arange(queries)[:, None]
    halves = np.where(np.arange(keys)[:, None] < keys // 2, 20.0, -5.0).astype(np.float32)
    long_query, long_key = (
        1e4 * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key)
    )
    return {
        "random": [query, key, value],
        "one huge key far away": [query, huge, value],
        "sinks": [query, sinks, value],
        "all keys equal": [query, np.ones_like(key), value],
        "keys that grow with distance": [query, growing, value],
        "large norms": [100 * query, 100 * key, value],
        "norms of 10^4": [long_query, long_key, value],
        "zero queries": [0 * query, key, value],
        "a common offset": [query, key + 30 * offset, value],
        "queries along and against it": [query + 9 * along, key + 30 * offset, value],
        "offsets that the first keys do not share": [query, key + halves * offset, value],
        "huge values far away": [query, key, value * np.linspace(1e4, 1, keys)[:, None]],
    }


def holes(keys: int) -> NDArray[np.bool_]:
    return np.random.default_rng(5).random((1, keys)) < 0.7


def ways(queries: int, keys: int) -> dict[str, tuple[na.ALiBi, dict[str, Any]]]:
    """Return biases and options with which keys may be skipped."""
    symmetric = na.ALiBi(4, sides="symmetric")
    repeats = np.sort(np.random.default_rng(6).integers(0, keys // 2, keys))
    counted = np.maximum(holes(keys).cumsum(axis=1) - 1, 0)
    return {
        "causal": (symmetric, {}),
        "both sides": (symmetric, {"causal": False}),
        "NTK": (na.ALiBi(4, na.NTK(16.0)), {}),
        "two slopes": (
            na.ALiBi(
                4,
                slopes=(np.float32([0.5, 0.1, 0.02, 0.0]), np.float32([0.01, 0.3, np.inf, 1.0])),
                sides="two_slopes",
            ),
            {"causal": False},
        ),
        "log-n": (symmetric, {"log_n": 8}),
        "window and sink": (symmetric, {"window": keys // 2, "sink": 4}),
        "holes": (symmetric, {"key_padding_mask": holes(keys)}),
        "real tokens": (
            symmetric,
            {"key_padding_mask": holes(keys), "key_positions": counted, "causal": False},
        ),
        "repeats": (symmetric, {"key_positions": repeats}),
        "no order": (
            symmetric,
            {
                "key_positions": np.random.default_rng(7).permutation(keys),
                "query_positions": np.arange(keys - queries, keys),
            },
        ),
    }


def check_certificate(
    arrays: list[NDArray[Any]], bias: na.ALiBi, options: dict[str, Any], dtype: str
) -> None:
    """Check that skipping changes a call by at most the proven bound."""

    def attend(query: Any, key: Any, value: Any, *, skip_tolerance: float | None) -> Any:
        output, log, stats = na.attention(
            query,
            key,
            value,
            bias,
            **options,
            skip_tolerance=skip_tolerance,
            return_logsumexp=True,
            return_stats=True,
        )
        assert (stats.visited <= stats.visible).all()
        return output, log

    check_change(attend, *(x.astype(NUMPY[dtype]) for x in arrays))


def check_change(attend: Callable[..., Any], query: Any, key: Any, value: Any) -> None:
    """Check that tolerances change a result by at most the bound that they set, and rounding.

    Both calls round sums of 64 keys and of blocks, numerator and denominator, and the result.
    """
    dtype = "bfloat16" if query.dtype == NUMPY["bfloat16"] else query.dtype.name
    whole, whole_log = attend(query, key, value, skip_tolerance=None)
    size, _ = attend(query, key, np.abs(value), skip_tolerance=None)
    whole, size, wide = (np.asarray(x, np.float64) for x in (whole, size, value))
    wide = np.repeat(wide, query.shape[1] // key.shape[1], axis=1)
    spread = (wide.max(axis=2) - wide.min(axis=2))[:, :, None]
    sums = 2 * UNIT * (72 + key.shape[2] / 16)
    log_noise = 2 * sums + 4 * UNIT * np.abs(np.where(np.isneginf(whole_log), 0.0, whole_log))
    weights = ROUNDING[dtype] if dtype == "bfloat16" else 0.0
    noise = 2 * (sums + weights) * size / (1 - ROUNDING[dtype])
    for tolerance in TOLERANCES:
        output, log = attend(query, key, value, skip_tolerance=tolerance)
        eps = tolerance or UNIT
        none = np.isneginf(whole_log)
        assert (np.isneginf(log) == none).all()
        lost = (whole_log[~none] - log[~none]).astype(np.float64)
        assert (lost <= math.log1p(eps) + log_noise[~none]).all()
        assert (lost >= -log_noise[~none]).all()
        allowed = eps * spread + noise
        allowed += ROUNDING[dtype] * (2 * np.abs(whole) + allowed) + 2.0**-24 * (dtype == "float16")
        assert (np.abs(whole - np.asarray(output, np.float64)) <= allowed).all()


@pytest.mark.parametrize("way", ways(8, 8))
@pytest.mark.parametrize("kind", adversaries(8, 8, 4))
def test_what_is_left_out_weighs_no_more_than_allowed(isa: str, kind: str, way: str) -> None:
    check_certificate(adversaries(150, 700, 16)[kind], *ways(150, 700)[way], "float32")


@pytest.mark.parametrize("way", ways(8, 8))
@pytest.mark.parametrize("kind", adversaries(8, 8, 4))
def test_with_few_queries_on_several_parts_of_the_keys(isa: str, kind: str, way: str) -> None:
    keys = 17000  # three parts
    for queries, dtype in ((1, "float32"), (2, "bfloat16")):
        arrays = adversaries(queries, keys, 5, kv_heads=2)[kind]
        check_certificate(arrays, *ways(queries, keys)[way], dtype)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(1, 17000), (60, 700)])
@pytest.mark.parametrize("kind", adversaries(8, 8, 4))
def test_with_quantized_keys(isa: str, kind: str, queries: int, keys: int, kept: bool) -> None:
    query, *rows = adversaries(queries, keys, 16, kv_heads=2)[kind]
    key, value = (na.QuantizedRows.of(x.astype(np.float32)) for x in rows)
    norms = na.KeyNorms().update(key) if kept else None
    bias, options = ways(queries, keys)["causal"]

    def attend(query: Any, _: Any, value: Any, *, skip_tolerance: float | None) -> Any:
        return na.attention(
            query, key, na.QuantizedRows.of(value), bias, **options, key_norms=norms,
            skip_tolerance=skip_tolerance, return_logsumexp=True,
        )  # fmt: skip

    check_change(attend, query.astype(np.float32), rows[0], value.dequantized())


@pytest.mark.parametrize("size", [1e18, 1e37])
@pytest.mark.parametrize("queries", [1, 70])
def test_offsets_near_the_end_of_float32(isa: str, queries: int, size: float) -> None:
    """Norms overflow, or the squares of queries underflow, while scores are moderate."""
    query, key, value = inputs(1, 4, 4, queries, 700, 16)
    arrays = [query * np.float32(10 / size), (key + 8) * np.float32(size / 10), value]
    for way in ("causal", "both sides", "two slopes"):
        check_certificate(arrays, *ways(queries, 700)[way], "float32")


@pytest.mark.parametrize("queries", [1, 70])
def test_centres_whose_scores_overflow(isa: str, queries: int) -> None:
    """The scores of the first keys are -infinity, and no sum is less than they are."""
    query, key, value = inputs(1, 4, 4, queries, 700, 16)
    query = np.float32(1e21) * (1 + np.abs(query))
    key[:, :, :300] = -1e18
    key[:, :, 300:] *= 1e-21
    for way in ("causal", "both sides", "two slopes"):
        check_certificate([query, key, value], *ways(queries, 700)[way], "float32")


@pytest.mark.parametrize("queries", [1, 512])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_vector_added_to_all_keys_does_not_change_the_share(
    isa: str, dtype: str, queries: int
) -> None:
    query, key, value = inputs(1, 8, 2, queries, 2048, 32)
    offset = np.random.default_rng(3).standard_normal((1, 2, 1, 32)).astype(np.float32)
    shares = []
    for size in (0.0, 1.0, 2.0, 4.0):
        arrays = (x.astype(NUMPY[dtype]) for x in (query, key + size * offset, value))
        _, stats = na.attention(*arrays, na.ALiBi(8), return_stats=True)
        shares.append(stats.visited.sum() / stats.visible.sum())
    assert max(shares) - min(shares) < 0.01
    assert max(shares) < 0.7


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("queries", [1, 100])
def test_keys_that_are_not_finite_prove_nothing(isa: str, queries: int, number: float) -> None:
    query, key, value = inputs(1, 2, 2, queries, 700, 16)
    key[:, :, 5] = number
    for norms in (None, na.KeyNorms().update(key)):
        with np.errstate(invalid="ignore"):
            _, stats = na.attention(
                query, key, value, na.ALiBi(2), key_norms=norms, return_stats=True
            )
        assert (stats.share == 1.0).all()


def test_blocks_weighed_are_those_whose_scores_matter() -> None:
    query, key, value = inputs(1, 8, 8, 1024, 1024, 32)
    far = np.full((1, 8, 1024), 200.0), np.zeros_like(query)
    attention = partial(na.attention, key_norms=na.KeyNorms().update(key))
    for rows in (slice(None), slice(-1, None)):
        part = query[:, :, rows], key, value, na.ALiBi(8)
        _, whole = attention(*part, skip_tolerance=None, return_stats=True)
        np.testing.assert_array_equal(whole.weighed, whole.visible)
        _, stats = attention(*part, skip_tolerance=2.0**-9, return_stats=True)
        assert (stats.weighed <= stats.visited).all()
        assert 0 < stats.weighed.sum() < stats.visited.sum()
        known = far[1][:, :, rows], far[0][:, :, rows].astype(np.float32)
        _, stats = attention(*part, initial=known, return_stats=True)
        assert stats.weighed.sum() == 0


def test_skipping_skips_what_is_far_from_steep_heads() -> None:
    query, key, value = inputs(1, 8, 8, 2048, 2048, 32)
    shares = []
    for tolerance in (None, 0.0, 2.0**-9):
        _, stats = na.attention(
            query, key, value, na.ALiBi(8), skip_tolerance=tolerance, return_stats=True
        )
        shares.append(stats.share[0])
    assert (shares[0] == 1.0).all()
    assert (shares[1] >= shares[2]).all()
    assert shares[1][0] < 0.2 < 0.9 < shares[1][-1]  # slopes 1/2 and 1/256


def test_a_heavy_block_far_away_does_not_make_the_light_ones_read() -> None:
    query, key, value = adversaries(64, 4000, 16)["one huge key far away"]
    _, stats = na.attention(query, key, value, na.ALiBi(4), return_stats=True)
    assert (stats.share[0, :2] < 0.2).all()


def test_negative_slopes_skip_nothing() -> None:
    query, key, value = inputs(1, 1, 1, 500, 500, 16)
    bias = na.ALiBi(1, slopes=np.float32([-0.01]))
    _, stats = na.attention(query, key, value, bias, skip_tolerance=0.5, return_stats=True)
    assert (stats.share == 1.0).all()


def test_a_query_does_not_weigh_blocks_that_are_hidden_from_it(isa: str) -> None:
    """A single query had counted a block whose keys it does not see, as a tile does not."""
    query, key, value = inputs(1, 8, 1, 1, 384, 16)
    bias = na.ALiBi(8, slopes=np.full(8, 2.0**-8, np.float32))
    places = np.arange(384)
    places[64:128] = np.where(np.arange(64) % 2 == 0, 0, 3840)
    counts = []
    for queries in (1, 9):
        rows = query.repeat(queries, 2)
        _, stats = na.attention(
            rows, key, value, bias, window=100, query_positions=np.full(queries, 383),
            key_positions=places, return_stats=True,
        )  # fmt: skip
        counts.append(stats.weighed.tolist())
    assert counts[0] == counts[1] == [[2] * 8]
