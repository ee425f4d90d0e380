"""Log-n scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import UNIT, inputs
from ntk_alibi.fused.gradients import attention_gradients
from ntk_alibi.masks import Problem


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


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("strength", [1.0, 0.5, (0.0, 0.5, 1.0, 2.0)], ids=str)
@pytest.mark.parametrize("form", ["none", "linear", "dynamic", "dense"])
def test_scores_of_any_strength_are_the_reference(
    isa: str, form: str, strength: Any, biased: bool
) -> None:
    query, key, value = inputs(2, 4, 2, 33, 70, 16)
    biases: dict[str, Any] = {
        "none": None,
        "linear": na.ALiBi(4),
        "dynamic": na.ALiBi(4, na.DynamicNTK(4.0, 16, per="query")),
        "dense": np.random.default_rng(0).standard_normal((33, 70)).astype(np.float32),
    }
    bias = biases[form]
    log_n = na.LogN(16, strength, biased)
    strengths = strength if isinstance(strength, tuple) else (strength,) * 4
    seen = np.arange(70) <= np.arange(37, 70)[:, None]
    factors = [na.reference.log_n_factors(seen, 16, strength=s) for s in strengths]
    factor = np.array(factors)[None, :, :, None]
    values = np.zeros((33, 70)) if bias is None else bias
    values = values.tensor(33, 70) if hasattr(values, "tensor") else values
    dense_bias = np.where(seen, values * factor if biased else values, -np.inf)
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


@pytest.mark.parametrize("form", ["slopes", "dense"])
def test_gradients_of_a_bias_that_is_multiplied(form: str) -> None:
    arrays, log_n = inputs(1, 4, 4, 20, 20, 8), na.LogN(4, biased=True)
    generator = torch.Generator().manual_seed(0)
    shape = (4,) if form == "slopes" else (1, 4, 20, 20)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        values = torch.rand(shape, generator=generator.manual_seed(0)).to(dtype).requires_grad_()
        bias = na.ALiBi(4, slopes=values) if form == "slopes" else values
        tensors = [torch.from_numpy(x).to(dtype) for x in arrays]
        na.attention(*tensors, bias, log_n=log_n).sin().sum().backward()
        gradients.append(values.grad)
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-4, atol=1e-5)
    output, logsumexp = na.attention(*arrays, _as_arrays(bias), log_n=log_n, return_logsumexp=True)
    by_hand = attention_gradients(
        *arrays, output, logsumexp, np.cos(output), bias=_as_arrays(bias), bias_gradient=True,
        log_n=log_n,
    )  # fmt: skip
    found = by_hand.dense if by_hand.left is None else by_hand.left.sum(axis=(0, 2))
    np.testing.assert_allclose(found, gradients[1], rtol=1e-4, atol=1e-5)


def _as_arrays(bias: Any) -> Any:
    if torch.is_tensor(bias):
        return bias.detach().float().numpy()
    return na.ALiBi(4, slopes=bias.slopes.detach().float().numpy())


def test_a_biased_factor_of_numbers_without_queries_is_refused() -> None:
    arrays = inputs(1, 2, 2, 5, 5, 8)
    for bias in (na.DistanceTable(np.ones((2, 5)), 0), na.ForgetGates(-np.ones((1, 2, 5)))):
        with pytest.raises(ValueError, match="bias must be linear or dense where log_n is biased"):
            na.attention(*arrays, bias, log_n=na.LogN(2, biased=True))
        na.attention(*arrays, bias, log_n=na.LogN(2, 0.5))


def test_factors_stay_within_float32() -> None:
    arrays = inputs(1, 2, 2, 9, 9, 8)
    assert np.isfinite(na.attention(*arrays, log_n=na.LogN(2, 1e30), scale=1.0)).all()


def test_factors_leave_the_dtype_of_a_bias() -> None:
    """NumPy 1 made float64 here; the core kept a pointer into a converted copy that was freed."""
    problem = Problem((1, 4, 9, 9))
    bias = na.ALiBi(4).kernel_bias(problem)
    times = bias.times(na.LogN(4, biased=True).factors(problem, None))
    assert times.left.dtype == np.float32
