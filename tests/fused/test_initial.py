"""Attention that goes on from a result over other keys."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs

BIASES: dict[str, Any] = {
    "none": None,
    "ALiBi": na.ALiBi(2, na.NTK(4.0), sides="symmetric"),
    "steep": na.ALiBi(2, slopes=np.float32([0.5, 0.1]), sides="symmetric"),
    "table": na.KerplePower([0.5, 0.1], [1.0, 1.0]),
    "exempt": na.ALiBi(2, sides="symmetric", exempt=2),
}


def apart(queries: int, keys: int, cut: int) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return inputs, and the options for the keys up to a cut and from there on."""
    arrays = inputs(1, 2, 2, queries, keys, 16)
    here, there = np.arange(keys - queries, keys), np.arange(keys)
    first, second = (
        {"query_positions": here, "key_positions": there[part], "causal": False}
        for part in (slice(cut, None), slice(0, cut))
    )
    return list(arrays), first, second


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("queries", [1, 2, 70])
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_the_result_is_that_over_all_keys(isa: str, bias: Any, queries: int, dtype: Any) -> None:
    (query, key, value), near, far = apart(queries, 500, 420)
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    whole = na.attention(
        query, key, value, bias, causal=False, return_logsumexp=True, skip_tolerance=None
    )
    known = na.attention(
        query, key[:, :, 420:], value[:, :, 420:], bias, return_logsumexp=True, **near
    )
    got = na.attention(
        query, key[:, :, :420], value[:, :, :420], bias, initial=known, return_logsumexp=True, **far
    )
    # Each of the two results is rounded, and so is the merged one.
    atol = 4e-6 if dtype is np.float32 else 3 * 2**-8
    for a, b in zip(got, whole, strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), atol=atol)
    unseen = np.zeros_like(query), np.full(query.shape[:3], -np.inf, np.float32)
    for a, b in zip(
        na.attention(query, key, value, bias, causal=False, initial=unseen, return_logsumexp=True),
        na.attention(query, key, value, bias, causal=False, return_logsumexp=True),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("tolerance", [0.0, 2.0**-9])
@pytest.mark.parametrize("queries", [1, 70])
def test_keys_are_skipped_against_the_initial_result(
    isa: str, queries: int, tolerance: float
) -> None:
    """Far keys alone have to be read; next to near ones, they do not matter."""
    (query, key, value), near, far = apart(queries, 4000, 3800)
    bias = na.ALiBi(2, slopes=np.float32([0.5, 0.02]), sides="symmetric")
    known = na.attention(
        query, key[:, :, 3800:], value[:, :, 3800:], bias, return_logsumexp=True, **near
    )
    options: dict[str, Any] = {"skip_tolerance": tolerance, "return_stats": True, **far}
    alone, with_initial = (
        na.attention(query, key[:, :, :3800], value[:, :, :3800], bias, initial=initial, **options)
        for initial in (None, known)
    )
    assert alone[1].visited.min() > 0
    assert with_initial[1].visited[0, 0] == 0
    assert with_initial[1].visited.sum() < alone[1].visited.sum()
    whole = na.attention(query, key, value, bias, causal=False, skip_tolerance=None)
    spread = value.max() - value.min()
    assert np.abs(with_initial[0] - whole).max() <= 2 * tolerance * spread + 4e-6


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_reach_both_parts(bias: Any, dtype: torch.dtype) -> None:
    arrays, near, far = apart(30, 90, 60)
    gradients = []
    for joined in (True, False):
        query, key, value = (torch.from_numpy(x).to(dtype).requires_grad_() for x in arrays)
        if joined:
            known = na.attention(
                query, key[:, :, 60:], value[:, :, 60:], bias, return_logsumexp=True, **near
            )
            output = na.attention(
                query, key[:, :, :60], value[:, :, :60], bias, initial=known, **far
            )
        else:
            output = na.attention(query, key, value, bias, causal=False)
        output.square().sum().backward()
        gradients.append((query.grad, key.grad, value.grad))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
