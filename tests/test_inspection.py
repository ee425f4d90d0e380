"""What biases and masks do, against formulas and the masks of other tests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ntk_alibi as na
from attention_checks import visible
from ntk_alibi.inspection import bias_by_distance, receptive_field, visible_intervals, weights

#: A bias of float32 is off by at most half an ulp, and so is the distance that solves for it.
ROUNDING = 2.0**-23


class Ripples:
    """A bias that is not monotone and has only the two names that every bias has."""

    num_heads = 1

    def tensor(self, query_length: int, key_length: int) -> Any:
        distances = na.reference.distances(query_length, key_length)
        return np.cos(distances)[None, None] - 1.0


@pytest.mark.parametrize("sides", ["causal", "symmetric", "halves"])
def test_bias_by_distance_is_the_references(sides: Any) -> None:
    bias = na.ALiBi(6, na.NTK(4.0), sides=sides)
    slopes = na.reference.ntk_slopes(na.reference.alibi_slopes(3 if sides == "halves" else 6), 4.0)
    if sides == "halves":
        hidden = np.full(3, np.inf)
        left, right = np.concatenate([slopes, hidden]), np.concatenate([hidden, slopes])
        dense = na.reference.linear_bias(left, right, 9, 9)
    elif sides == "causal":
        dense = na.reference.linear_bias(slopes, np.full(6, np.inf), 9, 9)
    else:
        dense = na.reference.symmetric_bias(slopes, 9, 9)
    behind, ahead = dense[0, :, -1, ::-1], dense[0, :, 0]
    np.testing.assert_allclose(bias_by_distance(bias, 9), behind, rtol=2 * ROUNDING)
    np.testing.assert_allclose(bias_by_distance(bias, 9, side="ahead"), ahead, rtol=2 * ROUNDING)


@pytest.mark.parametrize("side", ["behind", "ahead"])
def test_dynamic_scalings_are_taken_at_a_length(side: Any) -> None:
    dynamic = na.ALiBi(8, na.DynamicNTK(1.0, 512), sides="symmetric")
    static = na.ALiBi(8, na.NTK(4.0), sides="symmetric")
    found = bias_by_distance(dynamic, 5, length=2048, side=side)
    np.testing.assert_array_equal(found, bias_by_distance(static, 5, side=side))
    with_default = bias_by_distance(dynamic, 2048, side=side)
    np.testing.assert_array_equal(with_default[:, :5], found)


@given(
    heads=st.integers(1, 24),
    factor=st.floats(1.0, 16.0),
    share=st.floats(0.001, 0.99),
)
def test_receptive_field_of_linear_biases(heads: int, factor: float, share: float) -> None:
    slopes = na.reference.ntk_slopes(na.reference.alibi_slopes(heads), factor)
    distances = na.reference.receptive_field(slopes, share)
    found = receptive_field(na.ALiBi(heads, na.NTK(factor)), share, longest=2**16)
    inside = distances < 2**16 - 1
    # the slope, its product and log(share) are rounded, the last relative to its own size
    np.testing.assert_allclose(found[inside], distances[inside], rtol=4 * ROUNDING)
    assert np.isinf(found[distances > 2**16]).all()


def test_receptive_field_of_other_biases() -> None:
    level = 1.0 + math.log(0.5)
    assert math.cos(12) > level > math.cos(9)  # falls below and rises above again
    assert math.cos(13) > level > math.cos(14)  # the last time
    between = (math.cos(13) - level) / (math.cos(13) - math.cos(14))
    assert receptive_field(Ripples(), 0.5, longest=16)[0] == pytest.approx(13 + between)
    assert receptive_field(na.ALiBi(2, sides="halves"), side="ahead")[0] == 0.0
    assert np.isinf(receptive_field(na.ALiBi(1, slopes=np.zeros(1)))).all()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": False},
    {"window": 5},
    {"window": 5, "causal": False, "sink": 2},
    {"causal_block": 7, "sink": 1},
]


def mask_of(queries: int, keys: int, options: dict[str, Any]) -> Any:
    positions = np.arange(keys)
    return visible(positions[None, keys - queries :], positions[None], **options)[0, 0]


def test_weights_with_a_bias_are_the_references() -> None:
    bias = na.reference.linear_bias(na.reference.alibi_slopes(4), np.full(4, np.inf), 40, 300)
    zeros, eye = np.zeros((1, 4, 300, 1)), np.eye(300)[None, None]
    expected = na.reference.attention(zeros[:, :, :40], zeros, eye, bias)[0][0]
    found = weights(40, 300, na.ALiBi(4), skip_tolerance=None)
    np.testing.assert_allclose(found, expected, atol=1e-6)  # float32 sums of at most 300


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_intervals_cover_what_is_seen(options: dict[str, Any]) -> None:
    covered = np.zeros((30, 40), int)
    for query, first, last in visible_intervals(30, 40, **options):
        covered[query, first : last + 1] += 1
    np.testing.assert_array_equal(covered, mask_of(30, 40, options))
