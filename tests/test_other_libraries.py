"""Tests of docs/speed.md: conventions of other libraries, and a custom model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ntk_alibi as na
from ntk_alibi.biases.slopes import ModelSlopes


def ggml_slopes(heads: int, max_bias: float) -> list[float]:
    power = 2 ** math.floor(math.log2(heads))
    base, between = 2.0 ** (-max_bias / power), 2.0 ** (-max_bias / 2.0 / power)
    return [
        base ** (h + 1) if h < power else between ** (2 * (h - power) + 1) for h in range(heads)
    ]


@pytest.mark.parametrize("heads", [1, 8, 12, 16, 40, 71, 112])
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0, 16.0])
def test_ggml_slopes_for_a_max_bias_are_ours(heads: int, factor: float) -> None:
    scaling = na.MaxBias(factor)
    slopes = ggml_slopes(heads, scaling.max_alibi_bias(heads))
    np.testing.assert_allclose(na.alibi_slopes(heads, scaling), slopes, rtol=1e-6)
    if factor == 1.0:
        np.testing.assert_allclose(na.alibi_slopes(heads), ggml_slopes(heads, 8.0), rtol=1e-6)


@pytest.mark.parametrize("heads", [1, 4, 8, 12, 71])
@pytest.mark.parametrize("base", [4.0, 8.0, 16.0])
def test_ggml_slopes_for_a_max_bias_are_those_of_a_patched_mpt(heads: int, base: float) -> None:
    """MPT-7B-StoryWriter has 16: its stretched number is 18 for a factor of 4, not 10."""
    scaling = na.MaxBias(4.0)
    patched = ModelSlopes(heads, max_bias=base).slopes(scaling).ravel()
    slopes = ggml_slopes(heads, scaling.max_alibi_bias(heads, base))
    np.testing.assert_allclose(patched, slopes, rtol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 16, 40, 71, 112])
@pytest.mark.parametrize("base", [8.0, 16.0])
@pytest.mark.parametrize("scaling", [None, na.MaxBias(4.0), na.NTK(1.0)], ids=str)
def test_the_number_of_a_model_gives_its_slopes_in_ggml(
    heads: int, base: float, scaling: Any
) -> None:
    rule = ModelSlopes(heads, max_bias=base)
    number = rule.find_max_bias(scaling)
    assert number is not None
    np.testing.assert_allclose(rule.slopes(scaling).ravel(), ggml_slopes(heads, number), rtol=1e-6)


@pytest.mark.parametrize("heads", [2, 8, 12])
@pytest.mark.parametrize(
    "scaling",
    [
        na.NTK(4.0),
        na.NTK(1.0001),
        na.Interpolation(2.0),
        na.FlatHeads(4.0),
        na.DynamicNTK(2.0, 64),
    ],
    ids=str,
)
def test_other_slopes_have_no_number_in_ggml(heads: int, scaling: Any) -> None:
    assert ModelSlopes(heads).find_max_bias(scaling) is None


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 9), (4, 9)])
def test_flash_attention_and_vllm_mean_the_same_bias(queries: int, keys: int) -> None:
    slopes = na.alibi_slopes(4, na.NTK(2.0))
    ours = na.ALiBi(4, na.NTK(2.0)).tensor(queries, keys)[0]
    i, j = np.arange(queries)[:, None], np.arange(keys)
    flash = -slopes[:, None, None] * np.abs(i + keys - queries - j)
    causal = j <= i + keys - queries
    np.testing.assert_allclose(ours[:, causal], flash[:, causal], rtol=1e-6)
    newest = slopes[:, None] * (j - keys + 1)
    np.testing.assert_allclose(ours[:, -1], newest, rtol=1e-6)
