"""Patches with log-n factors, with scalings of some layers, and with knees that grow."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from family_models import HEADS, LOGITS, MAKERS, independent_logits, make_model
from model_runs import generate
from ntk_alibi.integrations.cache_argument import CACHE
from padded_batches import LENGTH, MASKS, real, run

SLOPES = na.reference.alibi_slopes(HEADS)
STRENGTHS = tuple(h / 4 for h in range(HEADS))
CASES = list(itertools.product(("mpt", "falcon"), ("fused", "eager")))
cases = pytest.mark.parametrize(("name", "attention"), CASES)
padded = pytest.mark.parametrize("mask", ["none", "left", "holes"])

#: Scalings and factors of `patch`, and the arguments of `independent_logits` for them.
PATCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "log-n": ({"log_n": 8}, {"log_n": (8, [1.0] * HEADS, False)}),
    "log-n per head": (
        {"log_n": na.LogN(8, STRENGTHS)},
        {"log_n": (8, STRENGTHS, False)},
    ),
    "SSMax with a knee": (
        {"scaling": na.Knee(6, 5.0), "log_n": na.LogN(8, 0.5, biased=True)},
        {"knee": (6, 5.0), "log_n": (8, [0.5] * HEADS, True)},
    ),
    "dynamic knee": (
        {"scaling": na.DynamicKnee(6, rate=4.0, train_length=10)},
        {"knee": (6, lambda n: (4.0 * n / 10).clamp(min=1))},
    ),
    "NTK in a layer": (
        {"scaling": na.NTK(4.0, layers=[1])},
        {"slopes": na.reference.ntk_slopes(SLOPES, 4.0), "layers": [1]},
    ),
    "knee in a layer": (
        {"scaling": na.DynamicKnee(6, rate=4.0, train_length=10, layers={0})},
        {"knee": (6, lambda n: (4.0 * n / 10).clamp(min=1)), "layers": [0]},
    ),
}
patches = pytest.mark.parametrize("patch", PATCHES)


@cases
@padded
@patches
def test_logits_equal_an_independent_computation(
    models: dict, ids: torch.Tensor, name: str, attention: Any, mask: Any, patch: str
) -> None:
    model, mask = models[name], MASKS[mask]
    given, meant = PATCHES[patch]
    kept = real(mask)
    expected = independent_logits(model, ids, mask, **{"slopes": SLOPES, **meant})
    with na.patch(model, attention=attention, **given):
        logits = run(model, ids, mask)
    torch.testing.assert_close(logits[kept].double(), expected[kept], **LOGITS)
    assert (logits - run(model, ids, mask))[kept].abs().max() > 1e-3


@pytest.mark.parametrize("mask", ["none", "left"])
@pytest.mark.parametrize("limits", [{}, {"window": 12}, {"window": 12, "sink": 3}], ids=str)
@patches
def test_forms_and_caches_of_bloom_agree(
    models: dict, ids: torch.Tensor, mask: str, limits: dict[str, int], patch: str
) -> None:
    model, padding = models["bloom"], MASKS[mask]
    kept, logits = real(padding), []
    for attention in ("eager", "fused"):
        with na.patch(model, attention=attention, **PATCHES[patch][0], **limits):
            logits.append(run(model, ids, padding)[kept])
    with na.patch(model, **PATCHES[patch][0], **limits), torch.no_grad():
        caches: list[Any] = [transformers.DynamicCache(), na.GrowingCache()]
        if limits:
            caches.append(na.WindowCache(limits["window"], limits.get("sink", 0)))
        for cache in caches:
            parts, past = [], 0
            for count in (LENGTH - 15, 14, 1):
                seen = None if padding is None else padding[:, : past + count]
                tokens = ids[:, past : past + count]
                step = model(tokens, attention_mask=seen, **{CACHE: cache}, use_cache=True)
                parts.append(step.logits)
                past += count
            logits.append(torch.cat(parts, 1)[kept])
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], **LOGITS)


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


@pytest.mark.parametrize("patch", ["log-n", "knee in a layer"])
def test_generation_with_a_cache_equals_full_passes(
    models: dict, ids: torch.Tensor, patch: str
) -> None:
    model, mask = models["bloom"], MASKS["left"]
    with na.patch(model, **PATCHES[patch][0]):
        tokens = generate(model, ids, mask)
        assert torch.equal(tokens, generate(model, ids, mask, use_cache=False))


def test_names_and_dicts_are_scalings(models: dict, ids: torch.Tensor) -> None:
    model = models["bloom"]
    length = model.config.seq_length if hasattr(model.config, "seq_length") else 2048
    for given, meant in (
        ("ntk:4", {"scaling": na.NTK(4.0)}),
        ("original", {}),
        ("flat:8:layers=1", {"scaling": na.FlatHeads(8.0, layers=[1])}),
        ("original:logn=0.5", {"log_n": na.LogN(length, 0.5)}),
        ("knee:6:5:ssmax=1", {"scaling": na.Knee(6, 5.0), "log_n": na.LogN(length, biased=True)}),
        ("dynamic-knee:6:5:sequence", {"scaling": na.DynamicKnee(6, 5.0, length, per="sequence")}),
        (na.NTK(4.0, layers=[1]).to_config(), {"scaling": na.NTK(4.0, layers=[1])}),
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
