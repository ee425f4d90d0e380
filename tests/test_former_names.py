"""Options, keys and arguments that left are refused, with what to use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi.methods import parse_method
from ntk_alibi.positions.log_n import as_log_n

ONE_FACTOR = "one factor for each text"
A_QUARTER = "a quarter of the heads is stretched"
ALL_LAYERS = "a scaling is for all layers; patch takes a dict of layer to bias"
UNBIASED = "log_n multiplies scores without their bias"
LOGN = "use logn=, which multiplies scores without their bias"

NAMES = {
    "dynamic-ntk:query": ONE_FACTOR,
    "dynamic-ntk:2:query": ONE_FACTOR,
    "dynamic-flat:sequence": ONE_FACTOR,
    "ntk:4:sequence": ONE_FACTOR,
    "flat:8:0.5": A_QUARTER,
    "dynamic-flat:2:0.5": A_QUARTER,
    "ntk:4:layers=0+2": ALL_LAYERS,
    "ntk:4:ssmax=0.5": LOGN,
    "dynamic-ntk:ssmax=0.5": LOGN,
    "original:ssmax=0.5": LOGN,
}
CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"alibi_type": "dynamic", "factor": 2.0, "per": "query"}, ONE_FACTOR),
    ({"alibi_type": "dynamic_linear", "factor": 1.0, "per": "sequence"}, ONE_FACTOR),
    ({"alibi_type": "flat_heads", "factor": 8.0, "share": 0.25}, A_QUARTER),
    ({"alibi_type": "dynamic_flat_heads", "factor": 2.0, "share": 0.5}, A_QUARTER),
    ({"alibi_type": "ntk", "factor": 4.0, "layers": [1]}, ALL_LAYERS),
]
ARGUMENTS: list[tuple[Callable[..., Any], str, Any, str]] = [
    (na.DynamicNTK, "per", "query", ONE_FACTOR),
    (na.DynamicInterpolation, "per", "sequence", ONE_FACTOR),
    (na.DynamicFlatHeads, "share", 0.5, A_QUARTER),
    (lambda **given: na.FlatHeads(8.0, **given), "share", 0.5, A_QUARTER),
    (lambda **given: na.NTK(4.0, **given), "layers", [1], ALL_LAYERS),
    (lambda **given: na.LogN(8, **given), "biased", True, UNBIASED),
]


def refusal(error: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "advice"), NAMES.items())
def test_options_of_names(name: str, advice: str) -> None:
    said = refusal(ValueError, lambda: parse_method(name, 2048))
    assert repr(name) in said
    assert f": {advice}" in said


@pytest.mark.parametrize(("config", "advice"), CONFIGS, ids=str)
def test_keys_of_configs(config: dict[str, Any], advice: str) -> None:
    said = refusal(ValueError, lambda: na.scaling_from_config(config))
    assert said.endswith(f"{list(config)[-1]!r} is unknown: {advice}")


def test_a_key_of_a_factor_of_scores() -> None:
    config = {"train_length": 8, "strength": 1.0, "biased": False}
    said = refusal(ValueError, lambda: as_log_n(config))
    assert said.endswith(f"'biased' is unknown: {UNBIASED}")


@pytest.mark.parametrize(("make", "name", "value", "advice"), ARGUMENTS)
def test_arguments(make: Callable[..., Any], name: str, value: Any, advice: str) -> None:
    said = refusal(TypeError, lambda: make(**{name: value}))
    assert said.startswith(f"{name} is no argument of ")
    assert said.endswith(f": {advice}")


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ({"method": "dynamic-ntk:query"}, ONE_FACTOR),
        ({"method": "ntk:4:layers=1"}, ALL_LAYERS),
        ({"method": CONFIGS[0][0]}, ONE_FACTOR),
        ({"log_n": {"train_length": 8, "biased": True}}, UNBIASED),
    ],
    ids=str,
)
def test_entries_of_saved_models(entry: dict[str, Any], advice: str) -> None:
    pytest.importorskip("transformers")
    from small_models import make_model

    model = make_model("bloom", layers=1)
    model.config.ntk_alibi = entry
    said = refusal(ValueError, lambda: na.patch(model))
    assert said.startswith("config.ntk_alibi must")
    assert advice in said
    assert na.patched(model) == []
