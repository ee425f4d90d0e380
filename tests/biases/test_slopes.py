"""Slopes against the papers' formulas, the published code and transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

import ntk_alibi as na

#: Correctly rounded float64 arithmetic with an error of a few ulp, then one rounding to float32.
ROUNDING = 2.0**-24 + 8 * 2.0**-53

every_head_count = pytest.mark.parametrize("heads", [*range(1, 65), 71, 112, 127, 128, 640, 1024])


@every_head_count
def test_press_slopes_are_the_authors(heads: int) -> None:
    np.testing.assert_allclose(
        na.alibi_slopes(heads), na.reference.alibi_slopes(heads), rtol=ROUNDING, atol=0
    )


@every_head_count
def test_geometric_slopes(heads: int) -> None:
    np.testing.assert_allclose(
        na.alibi_slopes(heads, rule="geometric"),
        na.reference.geometric_slopes(heads),
        rtol=ROUNDING,
        atol=0,
    )


@pytest.mark.needs("transformers >= 5.22", "older ones have no function of slopes alone")
@every_head_count
def test_slopes_are_those_of_transformers(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

    # transformers rounds the base to float32 before raising it to powers up to P, which multiplies
    # its relative error of 2^-24 by P; its pow adds one ulp.
    power = 2 ** int(np.log2(heads))
    theirs = _get_alibi_slopes(heads, torch.device("cpu")).numpy()
    np.testing.assert_allclose(na.alibi_slopes(heads), theirs, rtol=(power + 4) * 2.0**-24, atol=0)


@pytest.mark.parametrize("heads", [8, 12, 40, 112])
def test_slopes_are_those_of_mpt(heads: int) -> None:
    theirs = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0].numpy()
    np.testing.assert_allclose(na.alibi_slopes(heads), theirs, rtol=2.0**-22, atol=0)


@every_head_count
@pytest.mark.parametrize("factor", [1.0, 1.5, 4.0, 1000.0])
def test_scaled_slopes(heads: int, factor: float) -> None:
    plain = na.reference.alibi_slopes(heads)
    for scaling, reference in [
        (na.Interpolation(factor), na.reference.interpolated_slopes),
        (na.NTK(factor), na.reference.ntk_slopes),
        (na.FlatHeads(factor), partial(na.reference.flat_heads_slopes, share=0.25)),
        (na.MaxBias(factor), na.reference.max_bias_slopes),
    ]:
        np.testing.assert_allclose(
            na.alibi_slopes(heads, scaling), reference(plain, factor), rtol=2 * ROUNDING, atol=0
        )


@pytest.mark.parametrize("heads", [2, 4, 8, 16, 32, 64, 128])
def test_ntk_is_the_published_formula_for_powers_of_two(heads: int) -> None:
    np.testing.assert_allclose(
        na.alibi_slopes(heads, na.NTK(4.0)),
        na.reference.published_ntk_slopes(heads, 4.0),
        rtol=2 * ROUNDING,
        atol=0,
    )


@given(heads=st.integers(1, 1024), factor=st.floats(1.0, 1e6))
def test_ntk_keeps_the_steepest_divides_the_flattest_and_keeps_the_order(
    heads: int, factor: float
) -> None:
    plain, scaled = na.alibi_slopes(heads), na.alibi_slopes(heads, na.NTK(factor))
    steepest, flattest = plain.argmax(), plain.argmin()
    if heads > 1:
        assert scaled[steepest] == plain[steepest]
    assert scaled[flattest] == pytest.approx(plain[flattest] / factor, rel=3e-7)
    assert (np.diff(scaled[np.argsort(-plain)]) <= 0).all()
    assert (scaled <= plain).all()


@pytest.mark.parametrize(
    ("dynamic", "static"),
    [
        (na.DynamicNTK, na.NTK),
        (na.DynamicFlatHeads, na.FlatHeads),
        (na.DynamicInterpolation, na.Interpolation),
    ],
)
@given(
    heads=st.integers(1, 130),
    rate=st.floats(0.125, 8.0),
    train_length=st.integers(1, 4096),
    lengths=st.lists(st.integers(0, 100_000), min_size=1, max_size=4),
)
def test_a_text_has_the_slopes_of_its_factor(
    dynamic: Any, static: Any, heads: int, rate: float, train_length: int, lengths: list[int]
) -> None:
    """A row has them to the bit, also in a batch, and in the padded bias of a model."""
    scaling = dynamic(rate, train_length)
    factors = [max(1.0, rate * n / train_length) for n in lengths]
    expected = [na.alibi_slopes(heads, static(factor)) for factor in factors]
    np.testing.assert_array_equal(na.alibi_slopes(heads, scaling, lengths), expected)
    short = [n % 9 for n in lengths]
    padded = np.array([[0] * (9 - n) + [1] * n for n in short])
    together = na.build_alibi_tensor(padded, heads, np.float32, scaling).reshape(-1, heads, 9)
    for row, n in zip(together, short, strict=True):
        alone = na.build_alibi_tensor(np.ones((1, n)), heads, np.float32, scaling)
        np.testing.assert_array_equal(row[:, 9 - n :], alone[:, 0])


def test_what_comes_in_decides_what_goes_out() -> None:
    assert isinstance(na.alibi_slopes(8), np.ndarray)
    lengths = torch.tensor([10, 5000])
    slopes = na.alibi_slopes(8, na.DynamicNTK(train_length=2048), lengths=lengths)
    assert isinstance(slopes, torch.Tensor)
    assert slopes.dtype == torch.float32
    assert slopes.shape == (2, 8)
