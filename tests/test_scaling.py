"""Scalings as values, their configs, and scalings written by users."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

import ntk_alibi as na

SCALINGS = [
    na.Interpolation(2.0),
    na.NTK(4.0),
    na.DynamicNTK(1.5, 1024),
    na.DynamicNTK(1.5, 1024, per="query"),
    na.DynamicInterpolation(2.0, 2048),
    na.FlatHeads(8.0),
    na.FlatHeads(8.0, 0.5),
    na.DynamicFlatHeads(),
    na.DynamicFlatHeads(1.5, 1024, 0.5, per="sequence"),
    na.MaxBias(4.0),
    na.Knee(1024, 28.0),
    na.DynamicKnee(1024),
    na.DynamicKnee(64, 3.5, 1024, per="sequence"),
    na.NTK(4.0, layers=[1]),
    na.DynamicFlatHeads(1.5, 1024, layers=range(3)),
    na.Knee(64, 5.0, layers={4, 2}),
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=repr)
def test_scalings_are_values(scaling: na.Scaling) -> None:
    assert isinstance(scaling, na.Scaling)
    assert pickle.loads(pickle.dumps(scaling)) == scaling
    assert eval(repr(scaling), vars(na)) == scaling
    assert hash(pickle.loads(pickle.dumps(scaling))) == hash(scaling)
    with pytest.raises(FrozenInstanceError):
        scaling.factor = 3.0


def test_numbers_of_any_kind_make_the_same_scaling() -> None:
    assert na.NTK(4) == na.NTK(np.float32(4.0)) == na.NTK(factor=np.int64(4))
    assert na.DynamicNTK(1, np.int64(2048)) == na.DynamicNTK(train_length=2048)


@pytest.mark.parametrize("scaling", SCALINGS, ids=repr)
def test_config_round_trip(scaling: na.Scaling) -> None:
    assert na.scaling_from_config(scaling.to_config()) == scaling


def test_configs_in_the_manner_of_transformers() -> None:
    length = {"original_max_position_embeddings": 1024}
    for config, scaling in [
        ({"alibi_type": "default"}, None),
        ({"alibi_type": "linear", "factor": 2.0}, na.Interpolation(2.0)),
        ({"alibi_type": "ntk", "factor": 4}, na.NTK(4.0)),
        ({"alibi_type": "dynamic", "factor": 1.5, **length}, na.DynamicNTK(1.5, 1024)),
        (
            {"alibi_type": "dynamic", "factor": 1.5, **length, "per": "query"},
            na.DynamicNTK(1.5, 1024, per="query"),
        ),
        ({"alibi_type": "dynamic_linear", "factor": 1, **length}, na.DynamicInterpolation(1, 1024)),
        ({"alibi_type": "flat_heads", "factor": 8}, na.FlatHeads(8.0)),
        ({"alibi_type": "flat_heads", "factor": 8, "share": 0.5}, na.FlatHeads(8.0, 0.5)),
        (
            {"alibi_type": "dynamic_flat_heads", "factor": 2, **length, "per": "sequence"},
            na.DynamicFlatHeads(2.0, 1024, per="sequence"),
        ),
        ({"alibi_type": "max_bias", "factor": 2}, na.MaxBias(2.0)),
        ({"alibi_type": "knee", "start": 1024, "factor": 28}, na.Knee(1024, 28.0)),
        ({"alibi_type": "knee", "start": 0, "factor": math.inf}, na.Knee(0, math.inf)),
        (
            {"alibi_type": "dynamic_knee", "start": 64, "factor": 7, **length},
            na.DynamicKnee(64, 7.0, 1024),
        ),
        ({"alibi_type": "ntk", "factor": 4, "layers": [2, 0]}, na.NTK(4.0, layers=(0, 2))),
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
    ("config", "message"),
    [
        ({"type": "linear"}, "one of factor and train_seq_len besides type, as BTLM and JAIS"),
        ({"type": "linear", "factor": 2, "train_seq_len": 9}, "one of factor and train_seq_len"),
        ({"type": "linear", "scale": 2}, "'scale' is unknown"),
        ({"type": "ntk", "factor": 2}, "type must be one of 'linear', got 'ntk'"),
        ({"type": "linear", "alibi_type": "ntk", "factor": 2}, "alibi_type, as ntk_alibi .* type"),
        ({"type": "linear", "factor": 0.5}, "factor must be a finite number >= 1, got 0.5"),
        ({}, "'alibi_type' is missing"),
        ({"alibi_type": "yarn"}, "alibi_type must be one of 'default', 'linear'.*got 'yarn'"),
        ({"alibi_type": "ntk"}, "'factor' is missing"),
        ({"alibi_type": "ntk", "factor": 2.0, "rate": 1}, "'rate' is unknown"),
        ({"alibi_type": "default", "factor": 2.0}, "'factor' is unknown"),
        ({"alibi_type": "ntk", "factor": 0.5}, "factor must be a finite number >= 1, got 0.5"),
    ],
)
def test_wrong_configs_say_what_is_wrong(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        na.scaling_from_config(config)


@pytest.mark.parametrize(
    "scaling",
    [
        na.DynamicNTK(),
        na.DynamicInterpolation(),
        na.DynamicFlatHeads(),
        na.DynamicFlatHeads(layers=[1]),
        na.DynamicKnee(8),
    ],
    ids=repr,
)
def test_a_training_length_may_be_that_of_the_model(scaling: Any) -> None:
    assert "original_max_position_embeddings" not in scaling.to_config()
    filled = scaling.trained_at(64)
    assert filled.train_length == 64
    assert filled.trained_at(32) == filled
    assert filled.layers == scaling.layers
    bias = na.ALiBi(4, filled.at_layer(1)).tensor(2, 128)
    assert bias.shape[-1] == 128
    with pytest.raises(ValueError, match=r"train_length must be given for Dynamic.* got None"):
        na.ALiBi(4, scaling.at_layer(1)).tensor(2, 128)


def test_layers_are_numbers() -> None:
    scaling = na.NTK(4.0, layers=np.array([3, 1, 3]))
    assert scaling.layers == (1, 3)
    assert scaling.at_layer(3) == na.NTK(4.0)
    assert scaling.at_layer(2) is None
    assert na.NTK(4.0).at_layer(2) == na.NTK(4.0)
    assert repr(scaling) == "NTK(factor=4.0, layers=(1, 3))"
    assert json.loads(json.dumps(scaling.to_config()))["layers"] == [1, 3]
    for wrong, error in (
        ([], ValueError),
        ([-1], ValueError),
        ([1.5], TypeError),
        ([True], TypeError),
        ("12", TypeError),
        (3, TypeError),
    ):
        with pytest.raises(error, match="layers"):
            na.NTK(4.0, layers=wrong)


def test_what_knows_no_layers_refuses_them() -> None:
    scaling, mask = na.NTK(4.0, layers=[1]), np.ones((1, 9), np.int64)
    for call in (
        lambda: na.ALiBi(4, scaling),
        lambda: na.ALiBi(4, na.Knee(4, 2.0, layers=[1])),
        lambda: na.alibi_slopes(4, scaling),
        lambda: na.build_alibi_tensor(mask, 4, np.float32, scaling),
        lambda: na.AlibiAttention(4, 16, scaling=scaling),
        lambda: na.RoPE(8).stretched(scaling),
    ):
        with pytest.raises(ValueError, match=r"scaling must be that of one layer here, got .*lay"):
            call()
    assert "layers=(1,)" in scaling._repr_html_()
    assert na.Knee(4, 2.0, layers=[1])._repr_html_()


def test_a_config_must_be_a_mapping() -> None:
    with pytest.raises(TypeError, match="config must be a mapping, got 'ntk'"):
        na.scaling_from_config("ntk")


class HalfOfTheHeads:
    """A user's own scaling: only the flatter half of the heads is interpolated."""

    def scale_exponents(self, exponents, lengths=None):
        return exponents + (exponents > np.median(exponents))


class ByLength:
    per = "sequence"

    def scale_exponents(self, exponents, lengths=None):
        return exponents[None] + np.log2(lengths[:, None])


def test_users_own_scalings() -> None:
    slopes = na.alibi_slopes(4, HalfOfTheHeads())
    assert slopes.tolist() == [2.0**-2, 2.0**-4, 2.0**-7, 2.0**-9]
    slopes = na.alibi_slopes(4, ByLength(), lengths=[1, 8])
    assert slopes[:, 0].tolist() == [2.0**-2, 2.0**-5]
    mask = np.array([[0, 1, 1]])
    bias = na.build_alibi_tensor(mask, 4, np.float32, ByLength())
    assert bias[:, 0, 2].tolist() == [2.0**-3, 2.0**-5, 2.0**-7, 2.0**-9]


def test_a_name_where_an_object_is_needed_says_where_names_go() -> None:
    for call in (na.alibi_slopes, na.ALiBi):
        with pytest.raises(TypeError, match="got 'ntk:4', the name of a method, which patch takes"):
            call(8, "ntk:4")


class Wrong:
    def __init__(self, result):
        self.result = result

    def scale_exponents(self, exponents, lengths=None):
        return self.result


@pytest.mark.parametrize("result", [np.zeros(3), np.zeros((2, 3)), np.full(4, np.nan)])
def test_what_a_users_scaling_returns_is_checked(result: np.ndarray) -> None:
    with pytest.raises(ValueError, match="scale_exponents must return"):
        na.alibi_slopes(4, Wrong(result))


def test_keys_of_other_scalings_are_refused() -> None:
    for config in (
        {"alibi_type": "flat_heads", "factor": 8, "per": "query"},
        {"alibi_type": "ntk", "factor": 8, "share": 0.5},
        {"alibi_type": "ntk", "factor": 8, "start": 5},
        {"alibi_type": "knee", "start": 5, "factor": 8, "per": "query"},
    ):
        with pytest.raises(ValueError, match="is unknown"):
            na.scaling_from_config(config)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan"), "a", True])
def test_shares_of_the_heads_are_checked(share: Any) -> None:
    for make in (na.FlatHeads, na.DynamicFlatHeads):
        with pytest.raises((TypeError, ValueError), match="share must be"):
            make(2.0, share=share)


@pytest.mark.parametrize(
    ("heads", "share", "flat"),
    [(8, 0.25, 2), (8, 0.26, 3), (1, 0.01, 1), (30, 0.1, 3), (112, 0.25, 28), (6, 1.0, 6)],
)
def test_the_flattest_heads_are_flattened_and_no_other(heads: int, share: float, flat: int) -> None:
    plain = na.alibi_slopes(heads)
    ratio = plain / na.alibi_slopes(heads, na.FlatHeads(8.0, share))
    assert sorted(plain[ratio == 8.0]) == sorted(plain)[:flat]
    assert (ratio[ratio != 8.0] == 1.0).all()


@pytest.mark.parametrize("heads", [1, 8, 12, 40])
def test_max_bias_is_what_other_formats_store(heads: int) -> None:
    """MPT's own function makes the slopes of a number of this kind; for 8 heads ours are theirs."""
    scaling = na.MaxBias(4.0)
    number = scaling.max_alibi_bias(heads)
    plain = na.alibi_slopes(heads).astype(np.float64)
    np.testing.assert_allclose(na.alibi_slopes(heads, scaling), plain ** (number / 8.0), rtol=1e-6)
    assert na.alibi_slopes(heads, scaling).min() == pytest.approx(plain.min() / 4.0, rel=1e-6)
    if heads == 8:
        theirs = -build_mpt_alibi_tensor(heads, 2, alibi_bias_max=number)[:, 0, 0].numpy()
        np.testing.assert_allclose(na.alibi_slopes(heads, scaling), theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("start", "factor", "message"),
    [
        (-1, 2.0, "start must be between 0"),
        (1.5, 2.0, "start must be an integer, got 1.5"),
        (2**31, 2.0, "start must be between 0"),
        (4, 0.0, "factor must be a finite number > 0, got 0.0"),
        (4, -2.0, "factor must be a finite number > 0"),
        (4, -math.inf, "factor must be a finite number > 0"),
        (4, math.nan, "factor must be a finite number > 0"),
        (4, "8", "factor must be a number, got '8'"),
        (4, np.ones(2), "factor must be a number"),
        (4, True, "factor must be a number"),
    ],
)
def test_the_numbers_of_a_knee_are_checked(start: Any, factor: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        na.Knee(start, factor)


@pytest.mark.parametrize("missing", ["start", "factor"])
def test_a_config_of_a_knee_has_both_numbers(missing: str) -> None:
    config = {"alibi_type": "knee", "start": 4, "factor": 2.0}
    del config[missing]
    with pytest.raises(ValueError, match=f"'{missing}' is missing"):
        na.scaling_from_config(config)


def test_an_infinite_factor_survives_json() -> None:
    knee = na.Knee(np.int64(7), np.float32(np.inf))
    assert knee == na.Knee(7, math.inf)
    assert na.scaling_from_config(json.loads(json.dumps(knee.to_config()))) == knee


def test_what_has_one_slope_for_each_head_refuses_a_knee() -> None:
    knee, mask = na.Knee(4, 2.0), np.ones((1, 9), np.int64)
    for call in (
        lambda: na.alibi_slopes(4, knee),
        lambda: na.plots.slopes(4, knee),
        lambda: knee.scale_exponents(np.ones(4)),
    ):
        with pytest.raises(ValueError, match=r"scaling must act on slopes here, got Knee\(start=4"):
            call()
    for anchor in ("first", "last"):
        with pytest.raises(ValueError, match=r"scaling must not be a knee here.*got Knee\(start=4"):
            na.build_alibi_tensor(mask, 4, np.float32, knee, anchor=anchor)
