"""Settings that the plugin reads from a model's configuration, and settings that it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import transformers

import ntk_alibi as na
from ntk_alibi.engines.vllm.families import BLOOM, FALCON
from ntk_alibi.engines.vllm.settings import check_no_settings, read_settings
from ntk_alibi.methods import method_name

STATIC = [na.Interpolation(4.0), na.NTK(4.0), na.FlatHeads(8.0), na.MaxBias(4.0)]
DYNAMIC = [
    na.DynamicNTK(2.0, 2048),
    na.DynamicInterpolation(1.0, 2048),
    na.DynamicFlatHeads(2.0, 2048),
]
NTK = {"alibi_type": "ntk", "factor": 4.0}


def bloom(entry: Any = None, **settings: Any) -> Any:
    config = transformers.BloomConfig(n_layer=3, n_head=4, hidden_size=64)
    config.update(settings if entry is None else {"ntk_alibi": entry, **settings})
    return config


def read(method: Any) -> Any:
    return read_settings(bloom({"method": method}), BLOOM).scaling


@pytest.mark.parametrize("scaling", STATIC, ids=repr)
def test_static_scalings_are_read(scaling: Any) -> None:
    assert read(scaling.to_config()) == scaling
    assert read(method_name(scaling)) == scaling


@pytest.mark.parametrize("entry", [None, {}, {"method": "original"}, {"attention": "eager"}])
def test_no_scaling_is_none(entry: Any) -> None:
    assert read_settings(bloom(entry), BLOOM).scaling is None


def test_an_entry_that_a_patch_wrote_is_read() -> None:
    model = transformers.BloomModel(bloom())
    na.patch(model, "ntk:4", attention="eager")
    assert read_settings(model.config, BLOOM).scaling == na.NTK(4)


@pytest.mark.parametrize(
    "entry",
    [
        *({"method": scaling.to_config()} for scaling in DYNAMIC),
        *({"method": name} for name in ("ntk", "ntk:4:logn=0.5", "dynamic-flat:2", "yarn:2")),
        *({"method": value} for value in (True, 4, [], {}, {"factor": 4.0})),
        {"method": {**NTK, "log_n": 256}},
        {"method": {"alibi_type": "ntk", "factor": math.nan}},
        {"window": 2048},
        {"sink": 4},
        {"causal_block": 128},
        {"log_n": {"train_length": 2048}},
        {"methods": "ntk:4"},
        "ntk:4",
    ],
    ids=repr,
)
def test_what_vllm_cannot_compute_is_a_value_error(entry: Any) -> None:
    """vLLM would show a TypeError as a traceback."""
    with pytest.raises(ValueError, match=r"^(config\.ntk_alibi|method) ") as caught:
        read_settings(bloom(entry), BLOOM)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("entry", [{"window": 2048}, {"method": "ntk:4"}])
def test_models_without_alibi_take_no_entry(entry: Any) -> None:
    with pytest.raises(ValueError, match=r"ntk_alibi must be"):
        check_no_settings(transformers.LlamaConfig(ntk_alibi=entry), "LlamaForCausalLM")


@pytest.mark.parametrize(
    "name", ["alibi_scaling", "ntk_alib", "alibi_factor", "bloom_gelo", "scaling", "method"]
)
def test_misspelt_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"must be named .*, got {name}, which vLLM would ignore"):
        read_settings(bloom(**{name: NTK}), BLOOM)
    read_settings(bloom(**{name: None}), BLOOM)


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
