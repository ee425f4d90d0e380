"""Error messages for wrong arguments of biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import UNIT, inputs

# Bad input
# --------------------------------------------------------------------------------------------------

SMALL = inputs(1, 2, 2, 4, 6, 4)


def call(bias: Any, **options: Any) -> Any:
    return na.attention(*SMALL, bias, **options)


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: na.KerplePower([0.0], [1.0]), ValueError, "r1 must be finite and > 0, got 0.0"),
    (lambda: na.KerplePower([-1.0], [1.0]), ValueError, "r1 must be finite and > 0, got -1.0"),
    (lambda: na.KerplePower([1.0], [2.5]), ValueError, "r2 must be .* and <= 2, got 2.5"),
    (lambda: na.KerplePower([1.0], 0.0), ValueError, "r2 must be .* > 0 and <= 2, got 0.0"),
    (lambda: na.KerplePower([np.nan], 1.0), ValueError, "r1 must be finite and > 0, got nan"),
    (lambda: na.KerplePower(1.0, [1.0]), ValueError, r"r1 must have shape \(heads,\), got \(\)"),
    (lambda: na.KerplePower([1.0], [1.0, 1.0]), ValueError, "r2 must have 1 heads, got 2"),
    (lambda: na.KerplePower(["x"], [1.0]), TypeError, "r1 must hold real numbers"),
    (lambda: na.KerplePower(torch.ones(1).int(), 1.0), TypeError, "r1 must be floating"),
    (lambda: na.KerpleLog(torch.tensor([-0.5]), 1.0), ValueError, "r1 must be .* got -0.5"),
    (lambda: na.KerpleLog([1.0], [0.0]), ValueError, "r2 must be finite and > 0, got 0.0"),
    (lambda: na.BAM([0.0], 1.0), ValueError, "alpha must be finite and > 0, got 0.0"),
    (lambda: na.BAM([1.0], -1.0, epsilon=0.0), ValueError, "beta must be .* > 0, got -1.0"),
    (lambda: na.BAM([1.0], 1.0, epsilon=-1.0), ValueError, "epsilon must be .* >= 0, got -1.0"),
    (lambda: na.BAM([1.0], 1.0, mu=np.inf), ValueError, "mu must be finite, got inf"),
    (lambda: na.Sandwich(0), ValueError, "num_heads must be between 1"),
    (lambda: na.Sandwich(2, 7), ValueError, "dimension must be a multiple of .* = 2, got 7"),
    (lambda: na.Sandwich(2, lambdas=[1.0, 0.0]), ValueError, "lambdas must be .* > 0, got 0.0"),
    (lambda: na.Sandwich(2).concatenated(*SMALL[:2], scale=0.0), ValueError, "scale must not be 0"),
    (lambda: na.Sandwich(3).concatenated(*SMALL[:2]), ValueError, "must have .* 3 heads, got 2"),
    (lambda: na.T5(np.ones(3)), ValueError, r"values must have shape \(heads, buck"),
    (lambda: na.T5(np.ones((1, 3))), ValueError, "values must have at least 4 buckets, got 3"),
    (lambda: na.T5(np.ones((1, 32)), max_distance=8), ValueError, "max_distance must be .* 9"),
    (lambda: na.T5(np.ones((1, 32)), "no"), TypeError, "bidirectional must be True or False"),
    (lambda: na.T5([[np.nan] * 4]), ValueError, "values must not hold NaN or infinity, got nan"),
    (lambda: na.DistanceTable([1.0]), ValueError, r"table must have shape \(heads, distances\)"),
    (lambda: na.DistanceTable(np.ones((2, 0))), ValueError, "table must have shape"),
    (lambda: na.DistanceTable([[1.0]], 0.5), TypeError, "begin must be an integer, got 0.5"),
    (lambda: call(na.DistanceTable(np.ones((2, 5)))), ValueError, "0 to 5 .* got 5 from 0"),
    (lambda: na.DistanceFunction(3, 1), TypeError, "function must be callable, got 3"),
    (lambda: na.DistanceFunction(lambda d: 1.0, 1), ValueError, "function must return"),
    (lambda: na.DistanceFunction(lambda d: d * np.nan, 1), ValueError, "values must not"),
    (lambda: na.ForgetGates([[[0.5]]]), ValueError, "log_gates must be <= 0, .* got 0.5"),
    (lambda: na.ForgetGates([[0.5]]), ValueError, r"log_gates must have shape \(batch, h"),
    (lambda: call(na.ForgetGates(-np.ones((1, 2, 5)))), ValueError, r"shape \(1, 2, 6\), .* \(1"),
    (lambda: call(na.ForgetGates(np.full((1, 2, 6), -np.inf))), ValueError, "must be finite where"),
    (
        lambda: call(na.ForgetGates(-np.ones((1, 2, 6))), query_positions=np.arange(4)),
        ValueError,
        "query_positions must be None",
    ),
    (lambda: call(na.ForgetGates(-np.ones((1, 2, 6))), align="start"), ValueError, "align 'end'"),
    (lambda: na.BiALiBi([1.0], [1.0, 2.0], 1.0), ValueError, "left must have 1 heads, got 2"),
    (lambda: na.ALiBi(2, exempt=-1), ValueError, "exempt must be between 0"),
    (lambda: call(na.KerpleLog([1.0] * 3, 1.0)), ValueError, "bias must have query's 2 heads"),
    (
        lambda: call(na.KerpleLog([1.0] * 2, 1.0), query_positions=np.ones(4)),
        TypeError,
        "query_positions must be integers, got dtype float64",
    ),
    (
        lambda: call(na.KerpleLog([1.0] * 2, 1.0), key_positions=np.array([0, 1, 2, 3, 4, 2**30])),
        ValueError,
        "positions must be less than 67108864 apart",
    ),
    (lambda: call(None, align="middle"), ValueError, "align must be one of 'end', 'start'"),
    (
        lambda: call(None, align="start", query_positions=np.arange(4)),
        ValueError,
        "query_positions must be None with align='start'",
    ),
    (
        lambda: na.KerplePower(torch.ones(1, requires_grad=True), 1.0).tensor(2, 2),
        ValueError,
        "must not require grad here",
    ),
    (lambda: na.AlibiAttention(2, 4, align="x"), ValueError, "align must be one of"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "error", "message"), BAD, ids=[x[2][:40] for x in BAD])
def test_bad_input_gets_a_sentence(
    attempt: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attempt()


def test_key_norms_are_not_for_exempt_tokens() -> None:
    norms = na.KeyNorms().update(SMALL[1])
    with pytest.raises(ValueError, match="key_norms must be None with"):
        call(na.ALiBi(2, exempt=1), key_norms=norms)
    call(na.KerpleLog([1.0, 2.0], UNIT), key_norms=norms)
