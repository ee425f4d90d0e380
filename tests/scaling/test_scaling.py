"""Scalings as values, their configs, and scalings written by users."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

import ntk_alibi as na


def test_configs_in_the_manner_of_transformers() -> None:
    length = {"original_max_position_embeddings": 1024}
    for config, scaling in [
        ({"alibi_type": "default"}, None),
        ({"alibi_type": "linear", "factor": 2.0}, na.Interpolation(2.0)),
        ({"alibi_type": "ntk", "factor": 4}, na.NTK(4.0)),
        ({"alibi_type": "dynamic", "factor": 1.5, **length}, na.DynamicNTK(1.5, 1024)),
        ({"alibi_type": "dynamic_linear", "factor": 1, **length}, na.DynamicInterpolation(1, 1024)),
        ({"alibi_type": "flat_heads", "factor": 8}, na.FlatHeads(8.0)),
        ({"alibi_type": "dynamic_flat_heads", "factor": 3, **length}, na.DynamicFlatHeads(3, 1024)),
        ({"alibi_type": "max_bias", "factor": 2}, na.MaxBias(2.0)),
    ]:
        assert na.scaling_from_config(config) == scaling


def test_configs_of_btlm_and_jais() -> None:
    """Their code divides the slopes by the factor, or by max(1, keys / train_seq_len)."""
    assert na.scaling_from_config({"type": "linear", "factor": 2.0}) == na.Interpolation(2.0)
    scaling = na.scaling_from_config({"type": "linear", "train_seq_len": 2048, "factor": None})
    assert scaling == na.DynamicInterpolation(1.0, 2048)
    for length, factor in ((1000, 1.0), (2048, 1.0), (3072, 1.5), (8192, 4.0)):
        slopes = na.alibi_slopes(8, scaling, [length])[0]
        np.testing.assert_allclose(slopes, na.alibi_slopes(8) / factor, rtol=2.0**-23)


@pytest.mark.parametrize(
    "scaling",
    [
        na.DynamicNTK(),
        na.DynamicInterpolation(),
        na.DynamicFlatHeads(),
    ],
    ids=repr,
)
def test_a_training_length_may_be_that_of_the_model(scaling: Any) -> None:
    assert "original_max_position_embeddings" not in scaling.to_config()
    filled = scaling.trained_at(64)
    assert filled.train_length == 64
    assert filled.trained_at(32) == filled
    bias = na.ALiBi(4, filled).tensor(2, 128)
    assert bias.shape[-1] == 128
    with pytest.raises(ValueError, match=r"train_length must be given for Dynamic.* got None"):
        na.ALiBi(4, scaling).tensor(2, 128)


class Divided:
    """A scaling with Python's hash, whose attribute may change."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def scale_exponents(self, exponents, lengths=None):
        return exponents + np.log2(self.factor)


def test_slopes_are_those_of_a_scaling_as_it_is_now() -> None:
    scaling = Divided(2.0)
    bias, inputs = na.ALiBi(4, scaling), np.random.default_rng(0).random((3, 1, 4, 9, 8), "f")
    na.attention(*inputs, bias)
    scaling.factor = 64.0
    for mine in (bias, na.ALiBi(4, scaling)):
        expected = na.attention(*inputs, na.ALiBi(4, Divided(64.0)))
        np.testing.assert_array_equal(na.attention(*inputs, mine), expected)


@pytest.mark.parametrize(
    ("heads", "flat"), [(1, 1), (4, 1), (5, 2), (6, 2), (8, 2), (30, 8), (112, 28)]
)
def test_the_flattest_heads_are_flattened_and_no_other(heads: int, flat: int) -> None:
    plain = na.alibi_slopes(heads)
    ratio = plain / na.alibi_slopes(heads, na.FlatHeads(8.0))
    assert sorted(plain[ratio == 8.0]) == sorted(plain)[:flat]
    assert (ratio[ratio != 8.0] == 1.0).all()


def test_scalings_are_frozen() -> None:
    for scaling in (na.NTK(4.0), na.DynamicNTK()):
        with pytest.raises(FrozenInstanceError):
            scaling.factor = 3.0
