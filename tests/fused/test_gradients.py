"""Gradients of fused attention against the reference's: sizes, dtypes and skipping.

Masks, padding and biases are in tests/biases and in the fuzzer's kind "gradient".
"""

from __future__ import annotations

import numpy as np
import pytest

import ntk_alibi as na
from attention_checks import (
    NUMPY,
    UNIT,
    inputs,
    masked_bias,
    random,
)
from gradient_checks import (
    check_gradients,
    check_linear,
    expected,
    run,
)
from ntk_alibi.fused.gradients import attention_gradients

SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 4, 2, 33, 65, 16),
    (1, 3, 1, 63, 130, 17),
    (1, 2, 2, 40, 70, 64),
    (2, 6, 3, 5, 300, 80),
    (1, 1, 1, 129, 700, 256),
]


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_causal_linear_bias(isa: str, shape: tuple[int, ...], dtype: str) -> None:
    arrays = inputs(*shape, dtype=dtype)
    heads, queries, keys = shape[1], shape[3], shape[4]
    bias = na.ALiBi(heads, na.NTK(4.0))
    result, do, dl = run(arrays, bias, {})
    what = expected(arrays, masked_bias(bias, queries, keys), do, dl)
    check_gradients(what, result)
    check_linear(what, result, na.reference.distances(queries, keys))


@pytest.mark.parametrize("tolerance", [0.0, 2.0**-9])
def test_skipping_changes_gradients_by_what_it_allows(isa: str, tolerance: float) -> None:
    query, key, value = inputs(1, 4, 4, 700, 700, 16)
    bias = na.ALiBi(4)
    output, log = na.attention(query, key, value, bias, skip_tolerance=None, return_logsumexp=True)
    do = random(5, *query.shape)
    whole, part = (
        attention_gradients(
            query, key, value, output, log, do, bias=bias, skip_tolerance=t, bias_gradient=True
        )
        for t in (None, tolerance)
    )
    # The keys left out of a query's sum weigh at most eps, and |do.v - do.o| is at most twice the
    # longest product.
    eps = tolerance or UNIT
    longest = np.sqrt((do**2).sum(-1)).max() * np.sqrt((value**2).sum(-1)).max()
    allowed = eps * 2 * longest * 0.25 * np.sqrt((key**2).sum(-1)).max() + 2e-5
    assert np.abs(whole.query - part.query).max() <= allowed
