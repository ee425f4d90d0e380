"""Log-n scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import UNIT, inputs


def test_log_n_changes_nothing_up_to_the_training_length() -> None:
    arrays = inputs(2, 4, 2, 64, 64, 16)
    plain, scaled = (na.attention(*arrays, na.ALiBi(4), log_n=n) for n in (None, 64))
    np.testing.assert_array_equal(plain, scaled)
    assert (na.attention(*arrays, na.ALiBi(4), log_n=63) != plain)[:, :, -1].any()


def test_log_n_takes_key_norms() -> None:
    query, key, value = inputs(1, 2, 2, 1, 300, 16)
    norms = na.KeyNorms().update(key)
    plain, kept = (na.attention(query, key, value, log_n=8, key_norms=n) for n in (None, norms))
    np.testing.assert_array_equal(plain, kept)


@pytest.mark.parametrize("strength", [1.0, 0.5, (0.0, 0.5, 1.0, 2.0)], ids=str)
@pytest.mark.parametrize("form", ["none", "linear", "dynamic", "dense"])
def test_scores_of_any_strength_are_the_reference(isa: str, form: str, strength: Any) -> None:
    query, key, value = inputs(2, 4, 2, 33, 70, 16)
    biases: dict[str, Any] = {
        "none": None,
        "linear": na.ALiBi(4),
        "dynamic": na.ALiBi(4, na.DynamicNTK(4.0, 16)),
        "dense": np.random.default_rng(0).standard_normal((33, 70)).astype(np.float32),
    }
    bias = biases[form]
    log_n = na.LogN(16, strength)
    strengths = strength if isinstance(strength, tuple) else (strength,) * 4
    seen = np.arange(70) <= np.arange(37, 70)[:, None]
    factors = [na.reference.log_n_factors(seen, 16, strength=s) for s in strengths]
    factor = np.array(factors)[None, :, :, None]
    values = np.zeros((33, 70)) if bias is None else bias
    values = values.tensor(33, 70) if hasattr(values, "tensor") else values
    dense_bias = np.where(seen, values, -np.inf)
    wide = query.astype(np.float64) * factor
    per_query_head = [np.repeat(x, 2, axis=1) for x in (key, value)]
    output, logsumexp = na.reference.attention(wide, *per_query_head, dense_bias)
    found = na.attention(query, key, value, bias, log_n=log_n, return_logsumexp=True)
    # scores are of magnitude 30, and round by some units
    np.testing.assert_allclose(found[0], output, rtol=0, atol=64 * UNIT * abs(value).max())
    np.testing.assert_allclose(found[1], logsumexp, rtol=8 * UNIT, atol=64 * UNIT)
    wide_tensors = [torch.from_numpy(x).double() for x in (query, key, value)]
    tensor = torch.from_numpy(bias) if isinstance(bias, np.ndarray) else bias
    exact = na.attention(*wide_tensors, tensor, log_n=log_n)
    np.testing.assert_allclose(exact, output, rtol=0, atol=1e-6)


def test_factors_stay_within_float32() -> None:
    arrays = inputs(1, 2, 2, 9, 9, 8)
    assert np.isfinite(na.attention(*arrays, log_n=na.LogN(2, 1e30), scale=1.0)).all()
