"""Values at the ends of their ranges: an answer is right, or refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs
from ntk_alibi.fused.gradients import attention_gradients

QUERY, KEY, VALUE = inputs(1, 2, 2, 6, 6, 8)
LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("queries", [1, 2, 40])
def test_tiny_queries_at_a_huge_scale_keep_their_certificate(isa: str, queries: int) -> None:
    """Squares of the queries underflow; the scores of the first key are 640."""
    query = np.full((1, 1, queries, 64), 1e-19, ml_dtypes.bfloat16)
    key, value = np.zeros((2, 1, 1, 1024, 64), ml_dtypes.bfloat16)
    key[0, 0, 0] = value[0, 0, 0] = 1
    for bias in (na.ALiBi(1), na.ALiBi(1, slopes=np.float32([0.5]))):
        for tolerance in (None, 0.0, 1e-3):
            got = na.attention(query, key, value, bias, scale=1e20, skip_tolerance=tolerance)
            np.testing.assert_array_equal(got.astype(np.float32), 1.0)


@pytest.mark.parametrize("distance", [2**10, 2**20, 2**30])
@pytest.mark.parametrize("queries", [1, 2, 40])
@pytest.mark.parametrize("behind", [True, False])
def test_weights_are_exact_where_even_the_nearest_key_is_far(
    isa: str, behind: bool, queries: int, distance: int
) -> None:
    slope = np.float32(0.1)
    at = np.arange(64)
    query = np.zeros((1, 1, queries, 8), np.float32)
    key, value = np.zeros((2, 1, 1, 64, 8), np.float32)
    value[0, 0, :, 0] = at
    here = 63 + distance + np.arange(queries) if behind else np.arange(queries)
    there = at if behind else at + queries + distance
    output, logsumexp = na.attention(
        query, key, value, na.ALiBi(1, slopes=np.float32([slope]), sides="symmetric"),
        causal=False, query_positions=here, key_positions=there, return_logsumexp=True,
    )  # fmt: skip
    scores = -np.float64(slope) * np.abs(here[:, None] - there)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mean = (weights * at).sum(axis=1) / weights.sum(axis=1)
    # 64 additions of values below 64, and the distances 0 to 63 times a rounded slope.
    np.testing.assert_allclose(output[0, 0, :, 0], mean, rtol=64 * 2**-23)
    exact = scores.max(axis=1) + np.log(weights.sum(axis=1))
    np.testing.assert_allclose(logsumexp[0, 0], exact, rtol=2**-23)


@pytest.mark.parametrize("level", [0.0, -240.0, -1e6])
def test_gradients_are_as_exact_under_a_large_bias_as_without(isa: str, level: float) -> None:
    """A constant of all scores changes no gradient, but float32 rounds the scores more coarsely."""
    arrays = inputs(1, 2, 2, 6, 70, 8)
    do = np.random.default_rng(1).standard_normal(arrays[0].shape).astype(np.float32)
    bias = np.full((1, 2, 6, 70), level, np.float32)
    errors = {}
    exact = _torch_gradients(arrays, do, bias, torch.float64)
    errors["torch"] = _torch_gradients(arrays, do, bias, torch.float32)
    tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
    na.attention(*tensors, torch.from_numpy(bias), causal=False).backward(torch.from_numpy(do))
    errors["ours"] = [np.asarray(x.grad, np.float64) for x in tensors]
    worst = {
        name: max(np.abs(a - b).max() for a, b in zip(got, exact, strict=True))
        for name, got in errors.items()
    }
    # Scores in units of log 2 are 1.44 times as large, and rounded once more: 2 x 1.44.
    assert worst["ours"] <= 3.0 * worst["torch"] + 1e-6, worst


def _torch_gradients(
    arrays: list[Any], do: Any, bias: Any, dtype: torch.dtype
) -> list[np.ndarray[Any, Any]]:
    query, key, value = (torch.from_numpy(x).to(dtype).requires_grad_() for x in arrays)
    scores = query @ key.transpose(-1, -2) / 8**0.5 + torch.from_numpy(bias).to(dtype)
    (scores.softmax(-1) @ value).backward(torch.from_numpy(do).to(dtype))
    return [np.asarray(x.grad, np.float64) for x in (query, key, value)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 6, 70])
def test_the_lowest_number_masks_as_in_torch(isa: str, queries: int, dtype: str) -> None:
    """A row of such values alone is the mean of all values."""
    tensors = [
        torch.from_numpy(x).to(getattr(torch, dtype)) for x in inputs(1, 2, 2, queries, 70, 8)
    ]
    lowest = torch.finfo(tensors[0].dtype).min
    mask = torch.full((queries, 70), lowest)
    mask[1::2, :30] = 0.0
    expected = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=mask.to(tensors[0].dtype)
    )
    got = na.attention(*tensors, mask, causal=False)
    atol = 2e-6 if dtype == "float32" else 2**-7  # a bfloat16 result of size 1 to 2
    torch.testing.assert_close(got, expected, atol=atol, rtol=0)
    tensors = [x.float().requires_grad_() for x in tensors]
    na.attention(*tensors, mask, causal=False)[:, :, 1::2].sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in tensors)


def test_a_huge_slope_leaves_the_nearest_key(isa: str) -> None:
    for slope in (1e30, 1e38, -LOWEST):
        bias = na.ALiBi(2, slopes=np.float32([slope, slope]))
        np.testing.assert_array_equal(na.attention(QUERY, KEY, VALUE, bias), VALUE)
        far = na.attention(QUERY, KEY, VALUE, bias, query_positions=np.full(6, 100))
        np.testing.assert_array_equal(far, VALUE[:, :, -1:].repeat(6, axis=2))
        one = [x[:, :, :1] for x in (QUERY, KEY, VALUE)]
        for at, lowest in ((1, -slope), (20, max(-20.0 * slope, LOWEST))):
            output, logsumexp = na.attention(
                *one, bias, query_positions=np.array([at]), key_positions=np.array([0]),
                return_logsumexp=True,
            )  # fmt: skip
            np.testing.assert_array_equal(output, one[2])
            np.testing.assert_allclose(logsumexp, lowest, rtol=1e-6)


def test_a_huge_slope_towards_keys_on_both_sides(isa: str) -> None:
    """No key is at the query's position: the bias of the nearest ones is minus the slope."""
    slope = 1.125e38
    bias = na.ALiBi(2, slopes=np.float32([slope, slope]), sides="symmetric")
    for queries in (1, 6):
        _, logsumexp = na.attention(
            QUERY[:, :, :queries], KEY[:, :, :2], VALUE[:, :, :2], bias, causal=False,
            query_positions=np.full(queries, 1), key_positions=np.array([0, 2]),
            return_logsumexp=True,
        )  # fmt: skip
        np.testing.assert_allclose(logsumexp, -slope, rtol=1e-6)


STEEP = na.ALiBi(2, slopes=np.float32([3e38, 3e38]), sides="symmetric")
EXCEEDED = {
    "scale": lambda: na.attention(QUERY, KEY, VALUE, scale=3e38),
    "negative scale": lambda: na.attention(QUERY, KEY, VALUE, scale=-1e38),
    "scale of one query": lambda: na.attention(QUERY[:, :, :1], KEY, VALUE, scale=3e38),
    "slopes": lambda: na.attention(
        QUERY, KEY, VALUE, na.ALiBi(2, slopes=np.float32([-1e38, -1e38]))
    ),
    "query": lambda: na.attention(QUERY * np.float32(1e25), KEY * np.float32(1e25), VALUE),
    "bias": lambda: na.attention(QUERY, KEY, VALUE, np.full((6, 6), 3e38, np.float32)),
    "slopes towards far keys": lambda: na.attention(
        QUERY, KEY[:, :, :2], VALUE[:, :, :2], STEEP, causal=False,
        query_positions=np.full(6, 3), key_positions=np.array([0, 6]),
    ),
    "slopes of one query": lambda: na.attention(
        QUERY[:, :, :1], KEY[:, :, :2], VALUE[:, :, :2], STEEP, causal=False,
        query_positions=np.array([3]), key_positions=np.array([0, 6]),
    ),
    "tensors": lambda: na.attention(
        *(torch.from_numpy(x).requires_grad_() for x in (QUERY, KEY, VALUE)), scale=3e38
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", EXCEEDED.values(), ids=EXCEEDED)
def test_scores_beyond_float32_are_refused(isa: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="must give scores and sums within float32's range"):
        call()


def test_outputs_beyond_float16_by_dropout_are_refused_by_their_dtype(isa: str) -> None:
    query, key, value = (
        np.full((1, 2, n, 8), x, np.float16) for n, x in ((40, 1), (1, 1), (1, 4e4))
    )
    with pytest.raises(ValueError, match=r"\(65504 for float16\)"):
        na.attention(query, key, value, causal=False, dropout=0.5, seed=0)


LOWERING: dict[str, Callable[[int], Any]] = {
    "no bias": lambda keys: None,
    "ALiBi": lambda keys: na.ALiBi(2),
    "symmetric": lambda keys: na.ALiBi(2, slopes=np.float32([0.5, 0.25]), sides="symmetric"),
    "table": lambda keys: na.DistanceTable(np.zeros((2, keys), np.float32)),
    "dense": lambda keys: np.zeros((1, keys), np.float32),
}


@pytest.mark.parametrize("make", LOWERING.values(), ids=LOWERING)
@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("keys", [1, 64, 200])
def test_queries_whose_scores_are_all_below_float32_are_refused(
    isa: str, keys: int, queries: int, make: Callable[[int], Any]
) -> None:
    """In units of log 2, scores of -3e38 are minus infinity, like scores of hidden keys."""
    query, key = (np.ones((1, 2, n, 8), np.float32) for n in (queries, keys))
    value = np.ones((1, 2, keys, 8), np.float32)
    at = np.full(queries, keys - 1)
    with pytest.raises(ValueError, match="must give scores and sums within float32's range"):
        na.attention(query, key, value, make(keys), scale=-3e38 / 8, query_positions=at)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_scores_beyond_float64_are_refused(sign: float) -> None:
    query = torch.full((1, 1, 300, 4), 1e200, dtype=torch.float64)
    for bias in (None, na.ALiBi(1)):
        with pytest.raises(ValueError, match="within the range of float64, got finite inputs"):
            na.attention(query, sign * query, torch.ones_like(query), bias)
        none = torch.full_like(query, torch.inf)
        assert na.attention(query, sign * none, query, bias).isnan().any()


@pytest.mark.parametrize("queries", [1, 3, 40])
def test_one_key_whose_score_is_within_float32_suffices(isa: str, queries: int) -> None:
    """Queries that see no key are 0, at any scale."""
    query, key, value = (np.ones((1, 1, n, 8), np.float32) for n in (queries, 200, 200))
    key[:, :, 150], value[:, :, 150] = -1, 5
    at = np.arange(queries) + 199
    for bias in (None, na.ALiBi(1, slopes=np.float32([1.0]))):
        options: dict[str, Any] = {"scale": -2e38 / 8, "query_positions": at}
        np.testing.assert_array_equal(na.attention(query, key, value, bias, **options), 5.0)
        none = np.zeros((1, 200), np.bool_)
        masked = na.attention(query, key, value, bias, key_padding_mask=none, **options)
        np.testing.assert_array_equal(masked, 0.0)
        options["key_positions"] = 5000 + np.arange(200)
        np.testing.assert_array_equal(na.attention(query, key, value, bias, **options), 0.0)
    hidden = np.where(np.arange(200) < 100, -np.inf, 0.0).astype(np.float32)
    masked = na.attention(
        query, key, value, np.broadcast_to(hidden, (queries, 200)), scale=-2e38 / 8,
        query_positions=np.full(queries, 99),
    )  # fmt: skip
    np.testing.assert_array_equal(masked, 0.0)


@pytest.mark.parametrize("tensors", [False, True])
def test_gradients_of_two_parts_stay_within_float16(isa: str, tensors: bool) -> None:
    """The exempt key adds 132,000 to the query's gradient, and the others subtract as much."""
    query = np.zeros((1, 1, 1, 2), np.float16)
    key = np.array([[1000, 1], [1000, 2], [0, 3]], np.float16).reshape(1, 1, 3, 2)
    value = np.array([[20, 0], [-20, 0], [0, 0]], np.float16).reshape(1, 1, 3, 2)
    bias = na.ALiBi(1, exempt=1)
    exact = [torch.from_numpy(x).double().requires_grad_() for x in (query, key, value)]
    (na.attention(*exact, bias, scale=1.0) * 20.0).sum().backward()
    if tensors:
        given = [torch.from_numpy(x).requires_grad_() for x in (query, key, value)]
        (na.attention(*given, bias, scale=1.0) * 20.0).sum().backward()
        found: list[Any] = [x.grad for x in given]
    else:
        output, logsumexp = na.attention(query, key, value, bias, scale=1.0, return_logsumexp=True)
        of = np.full_like(output, 20)
        gradients = attention_gradients(
            query, key, value, output, logsumexp, of, bias=bias, scale=1.0
        )
        found = [gradients.query, gradients.key, gradients.value]
    # parts of the output, up to 20, are rounded to float16; the gradient 20 and keys multiply this
    bounds = 20 * 2**-11 * 20 * 1000, 0.0, 0.0
    for x, y, bound in zip(found, exact, bounds, strict=True):
        assert y.grad is not None
        np.testing.assert_allclose(np.asarray(x), y.grad, rtol=2**-10, atol=bound)


BEYOND: dict[str, Callable[[Any], Any]] = {
    "table": lambda x: na.DistanceTable(np.full((2, 6), x)),
    "values": lambda x: na.T5(np.full((2, 32), x)),
    "slopes": lambda x: na.ALiBi(2, slopes=np.array([x, x]), sides="symmetric"),
    "function": lambda x: na.DistanceFunction(lambda d: d * 0.0 + x, 2),
    "first": lambda x: na.BiALiBi([x, x], [0.5, 0.5], [0.25, 0.25]),
    "dense": lambda x: np.full((6, 6), x),
    "dense tensor": lambda x: torch.full((6, 6), x, dtype=torch.float64),
}


@pytest.mark.parametrize(("make", "x"), list(itertools.product(BEYOND.values(), [-1e300, -1e39])))
def test_biases_beyond_float32_are_refused(make: Callable[[Any], Any], x: float) -> None:
    bias: Any = make(x)
    arrays: list[Any] = [QUERY, KEY, VALUE]
    calls = [arrays, [torch.from_numpy(y).requires_grad_() for y in arrays]]
    if isinstance(bias, torch.Tensor):
        calls = calls[1:]
    for call in calls:
        with pytest.raises(ValueError, match="within float32's range"):
            na.attention(*call, bias)
    if hasattr(bias, "tensor"):
        with pytest.raises(ValueError, match="within float32's range"):
            bias.tensor(6, 6)


def test_an_exempt_token_that_is_padding(isa: str) -> None:
    """One of the two parts of the call has no key."""
    bias = na.ALiBi(2, sides="symmetric", exempt=1)
    mask = torch.tensor([[0, 1, 1, 1, 1, 1]])
    tensors = [torch.from_numpy(x).requires_grad_() for x in (QUERY, KEY, VALUE)]
    na.attention(*tensors, bias, causal=False, key_padding_mask=mask).square().sum().backward()
    exact = [torch.from_numpy(x).double().requires_grad_() for x in (QUERY, KEY, VALUE)]
    na.attention(*exact, bias, causal=False, key_padding_mask=mask).square().sum().backward()
    for mine, theirs in zip(tensors, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad.float(), atol=1e-5, rtol=1e-5)


def test_nan_stays_with_the_queries_that_see_it_in_float64() -> None:
    query, key, value = (torch.from_numpy(x).double().requires_grad_() for x in (QUERY, KEY, VALUE))
    with torch.no_grad():
        value[0, 0, 3] = torch.nan
        key[0, 1, 4] = torch.inf
    output = na.attention(query, key, value)
    assert output[0, 0, :3].isfinite().all()
    assert output[0, 0, 3:].isnan().all()
    assert output[0, 1, :4].isfinite().all()
    output[0, 0, 0].sum().backward()
    assert query.grad is not None
    assert query.grad[0, 0, :3].isfinite().all()
    assert query.grad[0, 1, :4].isfinite().all()


def test_results_that_are_read_only_have_gradients() -> None:
    results = na.attention(QUERY, KEY, VALUE, return_logsumexp=True)
    for array in results:
        array.flags.writeable = False
    log_gradient = np.ones(QUERY.shape[:3], np.float32)
    log_gradient.flags.writeable = False
    got = attention_gradients(QUERY, KEY, VALUE, *results, QUERY, log_gradient)
    assert np.isfinite(got.query).all()


def test_float16_overflows_without_a_warning() -> None:
    query = np.full((1, 1, 1, 1), 0.2, np.float16)
    key = np.array([1, -1], np.float16).reshape(1, 1, 2, 1)
    results = na.attention(query, key, key * 3e4, log_n=2, return_logsumexp=True)
    got = attention_gradients(query, key, key * 3e4, *results, query, log_n=2, scale=400.0)
    assert not np.isnan(got.query).any()
