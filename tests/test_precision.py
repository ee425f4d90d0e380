"""Tests of `na.precision` against other libraries' rounding, our tensors and published figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ntk_alibi as na
from attention_checks import NUMPY

PRECISION = na.precision
DTYPES: dict[str, Any] = {**NUMPY, "float64": np.float64}


@given(
    values=st.lists(st.floats(width=32) | st.floats(-70000, 70000, width=32), min_size=1),
    name=st.sampled_from(list(DTYPES)),
)
def test_rounding_is_that_of_numpy_ml_dtypes_and_torch(values: list[float], name: str) -> None:
    """Values start as float32, so that all libraries round once; subnormals occur, too."""
    source = np.array(values, np.float32)
    mine = PRECISION.rounded(source, name)
    with np.errstate(over="ignore"):
        theirs = source.astype(DTYPES[name]).astype(np.float64)
    np.testing.assert_array_equal(mine, theirs)
    tensor = torch.from_numpy(source).to(getattr(torch, name)).double().numpy()
    np.testing.assert_array_equal(mine, tensor)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("window", [1, 2, 256, 257, 258, 259, 2048, 2050, 5000, 8192, 70_000])
def test_counts_are_those_of_all_positions(name: str, window: int) -> None:
    with np.errstate(over="ignore"):
        kept = np.arange(window).astype(DTYPES[name]).astype(np.float64)
    assert PRECISION.exact_fraction(name, window) == (kept == np.arange(window)).mean()
    _, sizes = np.unique(kept, return_counts=True)
    assert PRECISION.collisions(name, window) == sizes[sizes > 1].sum()


def test_figures_of_the_article() -> None:
    """The share is about 10 % at 8192, and integers are exact up to 2^(significant bits)."""
    assert PRECISION.exact_fraction("bfloat16", 8192) == 896 / 8192
    for name, bits in (("bfloat16", 8), ("float16", 11)):
        assert PRECISION.collisions(name, 2**bits + 1) == 0
        assert PRECISION.exact_fraction(name, 2**bits + 1) == 1.0
        assert PRECISION.exact_fraction(name, 2**bits + 2) < 1.0
    assert PRECISION.exact_fraction("float32", 1_000_000) == 1.0


def weights_of(length: int, form: str, count: int) -> np.ndarray:
    random = np.random.default_rng(length)
    errors = []
    for _ in range(count):
        query, key = random.standard_normal((1, 64)), random.standard_normal((length, 64))
        errors.append(PRECISION.softmax_error(query, key, 2**-0.5, "bfloat16", form)[0])
    return np.array(errors)


@pytest.mark.parametrize(("length", "published"), [(2048, 0.37), (8192, 0.77)])
def test_an_absolute_bias_moves_the_weights_as_measured_before(
    length: int, published: float
) -> None:
    """The tolerance is four standard errors over 100 random rows, and half a last digit."""
    errors = weights_of(length, "absolute", 100)
    assert abs(errors.mean() - published) <= 4 * errors.std() / math.sqrt(100) + 0.005


def test_the_error_is_the_references_and_that_of_our_own_tensors() -> None:
    random = np.random.default_rng(0)
    query, key = random.standard_normal((5, 16)), random.standard_normal((700, 16))
    scores = query @ key.T / 4.0
    scores = np.where(np.arange(695, 700)[:, None] >= np.arange(700), scores, -np.inf)
    mask = torch.ones(1, 700, dtype=torch.int64)
    slope = float(na.alibi_slopes(16)[0])
    exact = scores + slope * np.arange(700)
    for form in ("absolute", "relative"):
        if form == "absolute":
            bias = na.build_alibi_tensor(mask, 16, torch.bfloat16)[0].double().numpy()
        else:
            bias = na.ALiBi(16).tensor(5, 700, torch.bfloat16)[0, 0].double().numpy()
            bias = np.where(np.isneginf(bias), 0.0, bias)
        expected = na.reference.total_variation(exact, scores + bias)
        mine = PRECISION.softmax_error(query, key, slope, "bfloat16", form)
        np.testing.assert_allclose(mine, expected, rtol=1e-9, atol=1e-12)


def test_rows_are_our_tensors_with_either_anchor() -> None:
    mask, slope = torch.ones(1, 3000, dtype=torch.int64), float(na.alibi_slopes(4)[1])
    for form, anchor, offset in (("absolute", "first", slope * 2999), ("relative", "last", 0.0)):
        theirs = na.build_alibi_tensor(mask, 4, torch.bfloat16, anchor=anchor)[1, 0].double()
        mine = PRECISION.alibi_row(slope, 3000, torch.bfloat16, form)
        np.testing.assert_allclose(mine, theirs.numpy() - offset, rtol=0, atol=1e-12)


@pytest.mark.parametrize("repaired", [False, True])
def test_tables_are_those_of_torch_in_bfloat16(repaired: bool) -> None:
    inner = torch.float32 if repaired else torch.bfloat16
    frequencies = (10000.0 ** (-torch.arange(32).double() / 32)).to(inner)
    angles = torch.outer(torch.arange(3000).to(inner), frequencies)
    tables = PRECISION.rope_tables(3000, 64, torch.bfloat16, repaired=repaired)
    for mine, f in zip(tables, (torch.cos, torch.sin), strict=True):
        theirs = f(angles.double()).numpy()
        assert np.abs(mine - theirs).max() <= 2**-9  # half a unit of bfloat16 below 1
        np.testing.assert_array_equal(mine, PRECISION.rounded(mine, torch.bfloat16))
