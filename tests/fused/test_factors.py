"""Factors of the scores, one for each query: the kernels' form of log-n scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ntk_alibi as na
from attention_checks import NUMPY, check, each_number_of_threads, inputs, masked_bias, random
from ntk_alibi.fused.call import AttentionCall, all_options, checked_call
from ntk_alibi.fused.forward import compute_in_core
from ntk_alibi.fused.gradients import ForwardResults, compute_gradients

BIAS = na.ALiBi(4, sides="symmetric")
SHAPES = {"decode": (1, 300, 64), "prefill": (130, 300, 64), "odd": (70, 90, 21)}


def call_of(
    arrays: list[Any], factors: Any = None, tolerance: float | None = 0.0, bias: Any = BIAS
) -> AttentionCall:
    call = checked_call(*arrays, bias, all_options({"skip_tolerance": tolerance}))
    return call._replace(factors=factors, core=None)


def powers_of_two(*shape: int) -> Any:
    return np.exp2(np.random.default_rng(4).integers(0, 4, shape)).astype(np.float32)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_any_factors_are_the_reference(shape: tuple[int, ...], dtype: str, isa: str) -> None:
    arrays = inputs(2, 4, 2, *shape, dtype=dtype)
    queries, keys, dim = shape
    factors = random(3, 2, 4, queries)
    factors[0, 0, 0], factors[1] = 0.0, -np.abs(factors[1])
    bias = masked_bias(BIAS, queries, keys)
    query, key = (np.asarray(x, np.float64) for x in arrays[:2])
    products = query @ np.repeat(key, 2, axis=1).swapaxes(-1, -2)
    scale = 1 / np.sqrt(dim)
    scores = scale * factors[..., None].astype(np.float64) * products
    output, log, _ = compute_in_core(call_of(arrays, factors))
    check(*arrays, bias, (output, log), scale * np.abs(factors).max(), scores=scores)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_factor_of_biased_scores_is_one_of_query_and_slopes(
    shape: tuple[int, ...], dtype: str, isa: str
) -> None:
    arrays = inputs(1, 4, 2, *shape, dtype=dtype)
    queries, keys, dim = shape
    factors = 1.0 + np.abs(random(3, 1, 4, queries))
    standard = na.alibi_slopes(4)[:, None]
    slopes = na.ALiBi(4, slopes=(standard * factors).astype(np.float32), sides="symmetric")
    wide = na.ALiBi(4, slopes=standard * factors.astype(np.float64))
    bias = masked_bias(wide, queries, keys)
    query, key = (np.asarray(x, np.float64) for x in arrays[:2])
    scores = query @ np.repeat(key, 2, axis=1).swapaxes(-1, -2) * factors[..., None] / np.sqrt(dim)
    output, log, _ = compute_in_core(call_of(arrays, factors, bias=slopes))
    check(*arrays, bias, (output, log), factors.max() / np.sqrt(dim), scores=scores)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rows", [(1, 1), (2, 4)], ids=str)
def test_factors_give_the_bits_of_multiplied_queries(
    rows: tuple[int, int], shape: tuple[int, ...], dtype: str, isa: str
) -> None:
    """Powers of two round nothing, so results, gradients and skipped blocks must be equal."""
    query, key, value = inputs(2, 4, 2, *shape, dtype=dtype)
    factors = powers_of_two(*rows, shape[0])
    multiplied = (query * factors[..., None].astype(query.dtype)).astype(query.dtype)
    calls = call_of([query, key, value], factors), call_of([multiplied, key, value])
    both = [compute_in_core(call, stats=True) for call in calls]
    for mine, theirs in zip(*(x[:2] for x in both), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(both[0][2].visited, both[1][2].visited)

    do, dl = random(5, *query.shape, dtype=dtype), random(6, *query.shape[:3])
    results = ForwardResults(*both[0][:2], do, dl)
    mine, theirs = (compute_gradients(call, results, bias_gradient=True) for call in calls)
    for name in ("key", "value", "left", "right"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    wide = np.asarray(theirs.query, np.float32) * factors[..., None]
    normal = np.abs(wide) > 2.0**-10  # float16 rounds subnormal values
    np.testing.assert_array_equal(np.asarray(mine.query, np.float32)[normal], wide[normal])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_greater_factor_elsewhere_does_not_weaken_the_bound(dtype: str, isa: str) -> None:
    """The product of norm and factor counts: the greatest of both together would skip nothing."""
    query, key, value = inputs(1, 4, 4, 512, 512, 32, dtype=dtype)
    factors = np.where(np.arange(512) % 2, 64.0, 1 / 64).astype(np.float32)[None, None]
    small = query / factors[..., None].astype(query.dtype)
    plain = compute_in_core(call_of([query, key, value]), stats=True)[2]
    scaled = compute_in_core(call_of([small, key, value], factors), stats=True)[2]
    np.testing.assert_array_equal(scaled.visited, plain.visited)
    assert plain.share.min() < 0.7


@pytest.mark.parametrize("greatest", [8.0, 2.0**24])
def test_the_same_bits_for_any_number_of_threads(greatest: float, isa: str) -> None:
    """Whether bfloat16 has hardware products depends on the whole call, not on a group of tiles."""
    arrays = inputs(1, 4, 2, 300, 300, 64, dtype="bfloat16")
    factors = 1.0 + np.arange(300, dtype=np.float32)[None, None] / 300
    factors[..., 170] = greatest
    outputs = []
    for _ in each_number_of_threads(1, 2, 5, 16):
        outputs.append(compute_in_core(call_of(arrays, factors))[:2])
    for output in outputs[1:]:
        for mine, theirs in zip(output, outputs[0], strict=True):
            np.testing.assert_array_equal(mine, theirs)
