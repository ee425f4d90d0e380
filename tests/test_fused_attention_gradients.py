"""Gradients of fused attention against the reference's, on every instruction set."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import NUMPY, ROUNDING, UNIT, dense, inputs, random, visible
from ntk_alibi.fused_attention import AttentionGradients, attention_gradients


def run(
    arrays: list[Any], bias: Any, options: dict[str, Any], *, with_log: bool = True
) -> tuple[AttentionGradients, NDArray[Any], NDArray[Any] | None]:
    """Gradients for random gradients of output and logsumexp, and those."""
    query = arrays[0]
    output, log = na.attention(*arrays, bias, **options, return_logsumexp=True)
    do = random(20, *query.shape).astype(query.dtype)
    dl = random(21, *query.shape[:3]) if with_log else None
    result = attention_gradients(*arrays, output, log, do, dl, bias, bias_gradient=True, **options)
    return result, do, dl


def check(
    arrays: list[Any],
    bias: NDArray[Any],
    result: AttentionGradients,
    do: NDArray[Any],
    dl: NDArray[Any] | None,
    scale: float | None = None,
) -> NDArray[np.float64]:
    """That gradients are the reference's to rounding; returns the reference's of the bias.

    A weight is wrong by the error of its score, (D + 8) u A + 4 u (A + |bias|), and of the rounded
    logsumexp; do.v and do.o by (D + 2) u of their magnitudes (and by the rounded output's error in
    half precision); sums over keys or queries by their number times u. All of it is taken of the
    sums of magnitudes.
    """
    name = "bfloat16" if arrays[0].dtype == NUMPY["bfloat16"] else arrays[0].dtype.name
    group = arrays[0].shape[1] // arrays[1].shape[1]
    q, k, v = (np.asarray(x, np.float64) for x in arrays)
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    do = np.asarray(do, np.float64)
    exact = na.reference.attention_gradients(q, k, v, bias, do, dl, scale)
    dim = q.shape[-1]
    factor = 1 / math.sqrt(dim) if scale is None else abs(scale)
    norms = [np.sqrt((x**2).sum(-1)).max(initial=0.0) for x in (q, k)]
    size = factor * norms[0] * norms[1]
    largest = np.where(np.isneginf(bias), 0.0, np.abs(bias)).max(initial=0.0)
    _, log = na.reference.attention(q, k, v, bias, scale)
    logs = np.abs(np.where(np.isneginf(log), 0.0, log)).max(initial=0.0)
    error = UNIT * ((dim + 16) * size + 8 * min(largest, size + 104) + 8 * logs + 64)
    weights = na.reference.attention_gradients(q, k, np.abs(v), bias, np.abs(do), None, scale)
    # |do|.|v| bounds both products in ds; the rounded output adds its own error.
    p = np.exp(
        factor * np.sign(1 if scale is None else scale) * q @ k.swapaxes(-1, -2)
        + bias
        - np.where(np.isneginf(log), 0.0, log)[..., None]
    )
    products = np.abs(do) @ np.abs(v).swapaxes(-1, -2)
    own = (p * products).sum(axis=-1, keepdims=True)
    most = p * (products + own + (0.0 if dl is None else np.abs(dl)[..., None]))
    half = ROUNDING[name] if name != "float32" else 0.0
    relative = error + UNIT * (dim + 80 + k.shape[2] / 16 + q.shape[2] / 8)
    ds_error = relative * most + half * p * own
    allowed = (
        factor * ds_error @ np.abs(k),
        factor * ds_error.swapaxes(-1, -2) @ np.abs(q),
        relative * weights[2],
    )
    half_result = ROUNDING[name]
    for mine, theirs, bound, grouped in zip(
        (result.query, result.key, result.value), exact, allowed, (1, group, group), strict=False
    ):
        if grouped > 1:
            shape = (theirs.shape[0], -1, grouped, *theirs.shape[2:])
            theirs, bound = theirs.reshape(shape).sum(axis=2), bound.reshape(shape).sum(axis=2)
        difference = np.abs(np.asarray(mine, np.float64) - theirs)
        spacing = 2.0**-24 if name == "float16" else 1e-30  # of its smallest numbers
        assert (difference <= bound * 1.01 + half_result * (np.abs(theirs) + bound) + spacing).all()
    return exact[3]


SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 4, 2, 33, 65, 16),
    (1, 3, 1, 63, 130, 17),
    (1, 2, 2, 70, 40, 64),
    (2, 6, 3, 5, 300, 80),
    (1, 1, 1, 129, 700, 256),
]


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_causal_linear_bias(isa: str, shape: tuple[int, ...], dtype: str) -> None:
    arrays = inputs(*shape, dtype=dtype)
    heads, queries, keys = shape[1], shape[3], shape[4]
    bias = na.ALiBi(heads, na.NTK(4.0))
    q, k = np.arange(keys - queries, keys), np.arange(keys)
    meant = np.where(visible(q, k), dense(bias, q, k), -np.inf)
    result, do, dl = run(arrays, bias, {})
    ds = check(arrays, meant, result, do, dl)
    distance = q[:, None] - k
    assert result.left is not None
    exact = -np.where(distance > 0, ds * distance, 0.0).sum(axis=-1)
    scale = np.abs(ds * distance).sum(axis=-1)
    half = ROUNDING[dtype] if dtype != "float32" else 0.0
    noise = 1e-4 * scale + half * 8 * scale + 1e-4
    assert (np.abs(result.left - exact) <= noise).all()


@pytest.mark.parametrize(
    "options",
    [
        {"causal": False},
        {"window": 20, "sink": 3},
        {"causal_block": 16},
        {"causal": False, "window": 9},
        {"scale": 0.3},
        {"scale": -0.3},
    ],
    ids=str,
)
def test_masks(isa: str, options: dict[str, Any]) -> None:
    arrays = inputs(2, 2, 2, 100, 130, 24)
    bias = na.ALiBi(2, sides="symmetric")
    q, k = np.arange(30, 130), np.arange(130)
    intervals = {name: value for name, value in options.items() if name != "scale"}
    meant = np.where(visible(q, k, **intervals), dense(bias, q, k), -np.inf)
    for tolerance in (None, 0.0):
        result, do, dl = run(arrays, bias, {**options, "skip_tolerance": tolerance})
        check(arrays, meant, result, do, dl, options.get("scale"))


def test_padding_and_what_it_holds(isa: str) -> None:
    query, key, value = inputs(2, 2, 1, 40, 100, 16)
    mask = np.random.default_rng(3).random((2, 100)) < 0.6
    mask[1] = False
    key[:, 0][~mask] = value[:, 0][~mask] = np.nan
    bias = na.ALiBi(2)
    q, k = np.arange(60, 100), np.arange(100)
    meant = np.where(visible(q, k, mask=mask), dense(bias, q, k), -np.inf)
    result, do, dl = run([query, key, value], bias, {"key_padding_mask": mask})
    clean = [query, *(np.nan_to_num(x, nan=0.0) for x in (key, value))]
    check(clean, meant, result, do, dl)
    for gradient in (result.key, result.value):
        assert (gradient[:, 0][~mask] == 0.0).all()
    assert (result.query[1] == 0.0).all()


def test_dense_bias(isa: str) -> None:
    arrays = inputs(1, 2, 2, 40, 70, 16)
    bias = random(9, 1, 2, 40, 70)
    q, k = np.arange(30, 70), np.arange(70)
    meant = np.where(visible(q, k), bias, -np.inf)
    result, do, dl = run(arrays, bias, {})
    ds = check(arrays, meant, result, do, dl)
    assert result.dense is not None
    np.testing.assert_allclose(result.dense, ds, atol=2e-5)


def test_the_same_bits_for_any_threads(isa: str) -> None:
    for shape in ((1, 1, 1, 200, 1500, 32), (2, 6, 2, 150, 150, 16)):
        results = []
        for threads in (1, 2, 3):
            na.set_num_threads(threads)
            try:
                results.append(run(inputs(*shape), na.ALiBi(shape[1]), {})[0])
            finally:
                na.set_num_threads(0)
        for other in results[1:]:
            for name in ("query", "key", "value", "left"):
                mine, theirs = (getattr(x, name) for x in (results[0], other))
                np.testing.assert_array_equal(mine, theirs)


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
    # What is left out of a query's sum weighs at most eps, and |do.v - do.o| at most twice the
    # longest product.
    eps = tolerance or UNIT
    longest = np.sqrt((do**2).sum(-1)).max() * np.sqrt((value**2).sum(-1)).max()
    allowed = eps * 2 * longest * 0.25 * np.sqrt((key**2).sum(-1)).max() + 2e-5
    assert np.abs(whole.query - part.query).max() <= allowed
