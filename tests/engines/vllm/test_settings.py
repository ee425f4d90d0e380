"""Settings that the plugin reads from a model's configuration, and settings that it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import transformers

import ntk_alibi as na
from ntk_alibi.engines.vllm.families import BLOOM, FALCON
from ntk_alibi.engines.vllm.settings import check_no_settings, read_settings

STATIC = [na.Interpolation(4.0), na.NTK(4.0), na.FlatHeads(8.0, share=0.5), na.MaxBias(4.0)]
DYNAMIC = [
    na.DynamicNTK(1.0, 2048),
    na.DynamicNTK(2.0, 2048, per="query"),
    na.DynamicInterpolation(1.0, 2048),
    na.DynamicFlatHeads(2.0, 2048),
]
KNEES = [na.Knee(1024, 28.0), na.DynamicKnee(1024, 7.0, 2048)]


def bloom(**settings: Any) -> Any:
    config = transformers.BloomConfig(n_layer=3, n_head=4, hidden_size=64)
    config.update(settings)
    return config


@pytest.mark.parametrize("scaling", STATIC, ids=repr)
@pytest.mark.parametrize("layers", [None, (0, 2)])
def test_static_scalings_are_read(scaling: Any, layers: Any) -> None:
    config = scaling.to_config() | ({} if layers is None else {"layers": list(layers)})
    found = read_settings(bloom(alibi_scaling=config), BLOOM).scaling
    assert found == na.scaling_from_config(config)
    assert getattr(found, "layers", None) == layers


@pytest.mark.parametrize("config", [None, {"alibi_type": "default"}])
def test_no_scaling_is_none(config: Any) -> None:
    assert read_settings(bloom(alibi_scaling=config), BLOOM).scaling is None
    assert read_settings(bloom(), BLOOM).scaling is None


def test_the_scaling_of_btlm_is_read() -> None:
    found = read_settings(bloom(alibi_scaling={"type": "linear", "factor": 2.0}), BLOOM)
    assert found.scaling == na.Interpolation(2.0)


@pytest.mark.parametrize("scaling", DYNAMIC, ids=repr)
def test_dynamic_scalings_are_refused(scaling: Any) -> None:
    with pytest.raises(ValueError, match=r"alibi_scaling must not depend on lengths in vLLM, got"):
        read_settings(bloom(alibi_scaling=scaling.to_config()), BLOOM)


@pytest.mark.parametrize("scaling", KNEES, ids=repr)
def test_knees_are_refused(scaling: Any) -> None:
    with pytest.raises(ValueError, match=r"alibi_scaling must act on slopes in vLLM, got"):
        read_settings(bloom(alibi_scaling=scaling.to_config()), BLOOM)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alibi_log_n", 2048),
        ("alibi_log_n", {"train_length": 2048}),
        ("alibi_window", 2048),
        ("alibi_sink", 4),
        ("alibi_causal_block", 128),
    ],
)
def test_settings_without_a_kernel_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be left out in vLLM"):
        read_settings(bloom(**{name: value}), BLOOM)
    with pytest.raises(ValueError, match=f"{name} must be left out in vLLM"):
        check_no_settings(transformers.LlamaConfig(**{name: value}), "LlamaForCausalLM")


def test_settings_that_say_nothing_are_accepted() -> None:
    read_settings(bloom(alibi_log_n=None, alibi_window=None, alibi_sink=0), BLOOM)


def test_layers_must_be_there() -> None:
    config = {"alibi_type": "ntk", "factor": 4.0, "layers": [1, 3]}
    with pytest.raises(ValueError, match=r"layers of alibi_scaling must be below 3"):
        read_settings(bloom(alibi_scaling=config), BLOOM)


NTK = {"alibi_type": "ntk", "factor": 4.0}

#: Values of `alibi_scaling`, and what is said of them.
WRONG: list[tuple[Any, str]] = [
    ("ntk:4", "must be a mapping, got 'ntk:4'"),
    (["ntk", 4.0], "must be a mapping"),
    (True, "must be a mapping, got True"),
    ({}, "'alibi_type' is missing"),
    ({"factor": 4.0}, "'alibi_type' is missing"),
    ({"alibi_typ": "ntk", "factor": 4.0}, "'alibi_type' is missing"),
    ({"rope_type": "yarn", "factor": 4.0}, "'alibi_type' is missing"),
    ({**NTK, "alibi_type": "yarn"}, "alibi_type must be one of .* got 'yarn'"),
    ({**NTK, "alibi_type": "NTK"}, "alibi_type must be one of .* got 'NTK'"),
    ({**NTK, "alibi_type": ["ntk"]}, "alibi_type must be one of"),
    ({"alibi_type": "ntk"}, "'factor' is missing"),
    ({"alibi_type": "ntk", "factr": 4.0}, "'factor' is missing; 'factr' is unknown"),
    ({**NTK, "log_n": 256}, "'log_n' is unknown"),
    *(({**NTK, "factor": x}, "factor must be") for x in (0, -1.0, 0.5, math.nan, math.inf)),
    *(({**NTK, "factor": x}, "factor must be a number") for x in ("4", None, True, [4.0])),
    *(({**NTK, "layers": x}, "layers") for x in ("0", [], [-1], [0.5], 1, [3])),
    ({"type": "ntk", "factor": 4.0}, "type must be one of 'linear', got 'ntk'"),
    ({"type": "linear"}, "factor"),
    ({"type": "linear", "train_seq_len": 2048}, "must not depend on lengths in vLLM"),
    ({"type": "linear", "factor": 2.0, "train_seq_len": 9}, "one of factor and train_seq_len"),
]


@pytest.mark.parametrize(("value", "message"), WRONG, ids=repr)
def test_a_wrong_scaling_is_a_value_error(value: Any, message: str) -> None:
    """vLLM would show a TypeError as a traceback."""
    with pytest.raises(ValueError, match=rf"alibi_scaling.*{message}"):
        read_settings(bloom(alibi_scaling=value), BLOOM)


@pytest.mark.parametrize(
    "name", ["alibi_scalling", "Alibi_Scaling", "albi_scaling", "alibi_factor", "bloom_gelo"]
)
def test_misspelt_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"must be named .*, got {name}, which vLLM would ignore"):
        read_settings(bloom(**{name: NTK}), BLOOM)
    read_settings(bloom(**{name: None}), BLOOM)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alibi_bias_max", 8),
        ("ntk_alibi", NTK),
        ("scaling", NTK),
        ("attn_implementation", "ntk-alibi"),
        ("attn_implementation", "ntk_alibi"),
    ],
)
def test_other_names_that_mean_the_plugin_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"got {name}, which vLLM would ignore"):
        read_settings(bloom(**{name: value}), BLOOM)


def test_what_a_saved_patch_has_is_no_misspelling() -> None:
    patched = bloom(alibi_scaling=NTK, alibi_attention="eager")
    assert read_settings(patched, BLOOM).scaling == na.NTK(4.0)
    read_settings(transformers.FalconConfig(alibi=True), FALCON)


def test_the_gelu_of_bloom_is_chosen() -> None:
    assert read_settings(bloom(), BLOOM).gelu == "tanh"
    assert read_settings(bloom(bloom_gelu="erf"), BLOOM).gelu == "erf"
    with pytest.raises(ValueError, match="bloom_gelu must be one of 'tanh', 'erf', got 'none'"):
        read_settings(bloom(bloom_gelu="none"), BLOOM)


def test_falcon_has_no_choice_of_gelu() -> None:
    config = transformers.FalconConfig(alibi=True)
    config.bloom_gelu = "erf"
    with pytest.raises(ValueError, match="bloom_gelu must be left out for Falcon"):
        read_settings(config, FALCON)
