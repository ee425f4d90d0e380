"""Factors of the scores, one for each query: the kernels' form of log-n scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ntk_alibi as na
from attention_checks import NUMPY, check, each_number_of_threads, inputs, masked_bias, random
from ntk_alibi.fused.call import AttentionCall, all_options, checked_call
from ntk_alibi.fused.forward import compute_in_core

BIAS = na.ALiBi(4, sides="symmetric")
SHAPES = {"decode": (1, 300, 64), "prefill": (130, 300, 64), "odd": (70, 90, 21)}


def call_of(
    arrays: list[Any], factors: Any = None, tolerance: float | None = 0.0, bias: Any = BIAS
) -> AttentionCall:
    call = checked_call(*arrays, bias, all_options({"skip_tolerance": tolerance}))
    return call._replace(factors=factors, core=None)


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
