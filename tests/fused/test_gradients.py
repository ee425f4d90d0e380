"""Gradients of fused attention against the reference's, on every instruction set."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import (
    NUMPY,
    UNIT,
    attend_with,
    each_isa,
    each_number_of_threads,
    inputs,
    masked_bias,
    random,
    visible,
)
from gradient_checks import (
    Expected,
    check_dense,
    check_gradients,
    check_linear,
    expected,
    over_diagonals,
    run,
    running,
)
from ntk_alibi import _core
from ntk_alibi.fused.gradients import AttentionGradients, attention_gradients
from ntk_alibi.masks import Mask

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
    result, do, dl = run(arrays, bias, {})
    what = expected(arrays, masked_bias(bias, queries, keys), do, dl)
    check_gradients(what, result)
    check_linear(what, result, na.reference.distances(queries, keys))


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
    intervals = {name: value for name, value in options.items() if name != "scale"}
    meant = masked_bias(bias, 100, 130, **intervals)
    for tolerance in (None, 0.0):
        result, do, dl = run(arrays, bias, {**options, "skip_tolerance": tolerance})
        what = expected(arrays, meant, do, dl, options.get("scale"), tolerance)
        check_gradients(what, result)
        check_linear(what, result, na.reference.distances(100, 130))


def test_padding_and_what_it_holds(isa: str) -> None:
    query, key, value = inputs(2, 2, 1, 40, 100, 16)
    mask = np.random.default_rng(3).random((2, 100)) < 0.6
    mask[1] = False
    key[:, 0][~mask] = value[:, 0][~mask] = np.nan
    bias = na.ALiBi(2)
    meant = masked_bias(bias, 40, 100, mask=mask)
    result, do, dl = run([query, key, value], bias, {"key_padding_mask": mask})
    check_gradients(expected([query, key, value], meant, do, dl), result)
    for gradient in (result.key, result.value):
        assert (gradient[:, 0][~mask] == 0.0).all()
    assert (result.query[1] == 0.0).all()


def test_dense_bias(isa: str) -> None:
    arrays = inputs(1, 2, 2, 40, 70, 16)
    bias = random(9, 1, 2, 40, 70)
    q, k = np.arange(30, 70), np.arange(70)
    meant = np.where(visible(q, k), bias, -np.inf)
    result, do, dl = run(arrays, bias, {})
    what = expected(arrays, meant, do, dl)
    check_gradients(what, result)
    check_dense(what, result)


def test_the_same_bits_for_any_threads(isa: str) -> None:
    for shape in ((1, 1, 1, 200, 1500, 32), (2, 6, 2, 150, 150, 16)):
        results = []
        for _ in each_number_of_threads(1, 2, 3):
            results.append(run(inputs(*shape), na.ALiBi(shape[1]), {})[0])
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
    # The keys left out of a query's sum weigh at most eps, and |do.v - do.o| is at most twice the
    # longest product.
    eps = tolerance or UNIT
    longest = np.sqrt((do**2).sum(-1)).max() * np.sqrt((value**2).sum(-1)).max()
    allowed = eps * 2 * longest * 0.25 * np.sqrt((key**2).sum(-1)).max() + 2e-5
    assert np.abs(whole.query - part.query).max() <= allowed


# Tables and prefix sums, by direct calls of the core
# --------------------------------------------------------------------------------------------------


def gradients_with(
    bias: _core.AttentionBias,
    arrays: list[Any],
    dl: NDArray[Any],
    tolerance: float | None,
    *,
    causal: bool = True,
    mask: NDArray[np.uint8] | None = None,
    table: NDArray[np.float64] | None = None,
    sums: NDArray[np.float64] | None = None,
) -> tuple[AttentionGradients, NDArray[Any]]:
    """Return float32 gradients by the core with one of its biases, and the output's gradient."""
    query, key, value = arrays
    output, log, _ = attend_with(bias, query, key, value, tolerance, causal=causal, mask=mask)
    do = random(20, *query.shape)
    results = [np.zeros_like(x) for x in arrays]
    rule = _core.CallRule(1 / math.sqrt(query.shape[3]), tolerance, Mask(causal).numbers())
    of_bias = _core.BiasGradients(table=table, sums=sums)
    _core.attention_gradients(
        *(query, key, value, bias, rule, _core.Tokens(None, None, mask)),
        *(output, log, do, dl, *results, of_bias),
    )
    return AttentionGradients(*results, None, None, None), do


CORE_SHAPES = [(1, 1, 1, 1, 1, 1), (2, 4, 2, 70, 130, 16), (1, 2, 1, 33, 1100, 17)]


def of_core(
    shape: tuple[int, ...], *, causal: bool, masked: bool
) -> tuple[list[Any], NDArray[Any], NDArray[np.uint8] | None, NDArray[np.bool_]]:
    """Return inputs, gradients of the logsumexp, a mask of keys and the visible pairs."""
    batch, heads, _, queries, keys, _ = shape
    mask = None
    if masked:
        mask = (np.random.default_rng(4).random((batch, keys)) < 0.7).astype(np.uint8)
    seen = visible(np.arange(keys - queries, keys), np.arange(keys), causal=causal, mask=mask)
    return inputs(*shape), random(21, batch, heads, queries), mask, seen


@pytest.mark.parametrize("begin", [0, -40, 7])
@pytest.mark.parametrize(("causal", "masked"), [(True, False), (True, True), (False, True)])
@pytest.mark.parametrize("shape", CORE_SHAPES, ids=str)
def test_tables(shape: tuple[int, ...], causal: bool, masked: bool, begin: int) -> None:
    arrays, dl, mask, seen = of_core(shape, causal=causal, masked=masked)
    heads, queries, keys = shape[1], *shape[3:5]
    table = -np.sort(4 * random(8, heads, 100), axis=1)
    index = np.arange(keys - queries, keys)[:, None] - np.arange(keys) - begin
    inside = (index >= 0) & (index < 100)
    numbers = np.where(inside, table[:, np.where(inside, index, 0)], 0.0)
    what: Expected | None = None
    for _ in each_isa():
        for tolerance in (None, 0.0):
            mine = np.zeros(table.shape)
            result, do = gradients_with(
                *(_core.table_bias(table, begin), arrays, dl, tolerance),
                causal=causal, mask=mask, table=mine,
            )  # fmt: skip
            what = what or expected(arrays, np.where(seen, numbers, -np.inf), do, dl)
            check_gradients(what, result)
            exact, errors = (over_diagonals(x, index, 100) for x in (what.ds, what.pairs.errors))
            assert (np.abs(mine - exact) <= errors).all()


@pytest.mark.parametrize(("causal", "masked"), [(True, False), (True, True), (False, True)])
@pytest.mark.parametrize("shape", CORE_SHAPES, ids=str)
def test_running_sums(shape: tuple[int, ...], causal: bool, masked: bool) -> None:
    arrays, dl, mask, seen = of_core(shape, causal=causal, masked=masked)
    batch, heads, _, queries, keys, _ = shape
    steps = -(np.random.default_rng(6).random((batch, heads, keys)) ** 4)
    total = 500.0 + steps.cumsum(axis=2)
    numbers = total[..., keys - queries :, None] - total[..., None, :]
    what: Expected | None = None
    for _ in each_isa():
        for tolerance in (None, 0.0):
            mine = np.zeros(total.shape)
            bias = _core.sums_bias(total)
            result, do = gradients_with(
                bias, arrays, dl, tolerance, causal=causal, mask=mask, sums=mine
            )
            what = what or expected(arrays, np.where(seen, numbers, -np.inf), do, dl)
            check_gradients(what, result)
            pairs = what.pairs
            errors = pairs.errors + UNIT * (keys + 2) * pairs.sizes  # queries' sums are float32
            assert (np.abs(mine - running(what.ds, -1.0)) <= running(errors, 1.0)).all()
