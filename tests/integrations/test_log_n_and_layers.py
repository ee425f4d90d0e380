"""Patches with log-n factors, with scalings of some layers, and with knees that grow."""

from __future__ import annotations

import pytest
import torch
import transformers

import ntk_alibi as na
from model_runs import run
from small_models import HEADS, MAKERS, make_model


@pytest.mark.parametrize("name", MAKERS)
def test_all_layers_are_no_restriction(models: dict, ids: torch.Tensor, name: str) -> None:
    model = models[name]
    layers = range(model.config.num_hidden_layers)
    with na.patch(model, na.NTK(4.0)):
        expected = run(model, ids)
    with na.patch(model, na.NTK(4.0, layers=layers)):
        assert torch.equal(run(model, ids), expected)
    with na.patch(model, na.NTK(4.0, layers=[0])):
        assert not torch.equal(run(model, ids), expected)


def test_names_and_dicts_are_scalings(models: dict, ids: torch.Tensor) -> None:
    model = models["bloom"]
    length = model.config.seq_length if hasattr(model.config, "seq_length") else 2048
    for given, meant in (
        ("ntk:4", {"method": na.NTK(4.0)}),
        ("original", {}),
        ("flat:8:layers=1", {"method": na.FlatHeads(8.0, layers=[1])}),
        ("original:logn=0.5", {"log_n": na.LogN(length, 0.5)}),
        ("knee:6:5:ssmax=1", {"method": na.Knee(6, 5.0), "log_n": na.LogN(length, biased=True)}),
        ("dynamic-knee:6:5:sequence", {"method": na.DynamicKnee(6, 5.0, length, per="sequence")}),
        (na.NTK(4.0, layers=[1]).to_config(), {"method": na.NTK(4.0, layers=[1])}),
        ({"alibi_type": "default"}, {}),
    ):
        with na.patch(model, given) as handle:
            assert handle.scaling == meant.get("scaling")
            assert handle.log_n == meant.get("log_n")
    with pytest.raises(ValueError, match=r"method must be original or one of .*got 'nkt:4'"):
        na.patch(model, "nkt:4")
    with pytest.raises(ValueError, match="a factor in scaling must be None when log_n is given"):
        na.patch(model, "ntk:4:logn=1", log_n=64)


def test_the_configuration_has_log_n(ids: torch.Tensor) -> None:
    stock = make_model("bloom")
    model = transformers.AutoModelForCausalLM.from_config(
        stock.config, attn_implementation="ntk_alibi"
    ).eval()
    model.load_state_dict(stock.state_dict())
    for value in (8, {"train_length": 8, "strength": [0.5] * HEADS, "biased": True}):
        model.config.alibi_log_n = value
        with na.patch(stock, log_n=value):
            assert torch.equal(run(model, ids), run(stock, ids))
    model.config.alibi_log_n = 1
    with pytest.raises(ValueError, match="log_n must be between 2 and"):
        run(model, ids)
    del model.config.alibi_log_n
    model.config.alibi_scaling = na.NTK(4.0, layers=[7]).to_config()
    with pytest.raises(ValueError, match="layers must be below 3"):
        run(model, ids)


def test_what_does_not_fit_is_refused(models: dict) -> None:
    model = models["bloom"]
    with pytest.raises(ValueError, match=r"layers must be below 3.*got NTK\(factor=4.0, layers="):
        na.patch(model, na.NTK(4.0, layers=[1, 3]))
    with pytest.raises(
        ValueError, match=f"strength of log_n must be one number, or one for each of {HEADS}"
    ):
        na.patch(model, log_n=na.LogN(8, (1.0, 2.0)))
    with pytest.raises(TypeError, match=r"log_n must be an integer, got 8\.5"):
        na.patch(model, log_n=8.5)  # type: ignore[arg-type]
    assert na.patched(model) == []
