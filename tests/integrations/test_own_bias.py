"""Biases that users bring to a patch: objects, learned modules, and dicts of layers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from model_runs import LENGTH, LOGITS, MASKS, batch, enable_checkpointing, real, run
from ntk_alibi.biases import BiasObject, KernelBias
from ntk_alibi.torch import learned_bias
from small_models import HEADS, families, make_model
from table_families import FAMILIES, Meaning, Oracle

RANDOM = np.random.default_rng(1)
R1, R2 = RANDOM.random((2, HEADS)) + 0.05
SLOPES = RANDOM.random(HEADS).astype(np.float32)
BIASES: dict[str, BiasObject] = {
    "kerple log": na.KerpleLog(R1, R2),
    "kerple power": na.KerplePower(R1, R2),
    "t5": na.T5(RANDOM.standard_normal((HEADS, 32)), bidirectional=False),
    "sandwich": na.Sandwich(HEADS, dimension=16),
    "bam": na.BAM(R1, R2, 1.0 + R1),
    "own slopes": na.ALiBi(HEADS, slopes=SLOPES),
    "exempt": na.ALiBi(HEADS, slopes=SLOPES, exempt=1),
}
ids = batch()


def at_distances(bias: BiasObject) -> Any:
    """Return the values of a bias as a function of distances."""
    row = np.asarray(bias.tensor(1, 2 * LENGTH), np.float64)[0, :, 0]
    return lambda distance: row[:, 2 * LENGTH - 1 - distance.astype(int)]


@families
@pytest.mark.parametrize("kind", [kind for kind in BIASES if kind != "exempt"])
def test_logits_are_those_of_the_bias(models: dict, name: str, kind: str) -> None:
    """BLOOM's eager form is transformers' own forward, which adds what it is given."""
    model, bias, mask = models[name], BIASES[kind], MASKS["left"]
    kept = real(mask)
    with na.patch(model, bias) as handle:
        assert handle.bias is bias
        assert handle.scaling is None
        logits = run(model, ids, mask)
    with na.patch(model, bias, attention="eager"):
        eager = run(model, ids, mask)
    torch.testing.assert_close(logits[kept], eager[kept], **LOGITS)
    assert (logits - run(model, ids, mask))[kept].abs().max() > 1e-3
    oracle = Oracle(model, FAMILIES[name].layout, Meaning(bias=at_distances(bias)))
    oracle.masks = {"decoder": mask}
    expected = run(oracle.model, ids, mask)
    torch.testing.assert_close(logits[kept].double(), expected[kept], **LOGITS)


def test_own_slopes_equal_those_of_the_scaling_in_bloom(models: dict) -> None:
    """In Falcon the model's own bias is divided with the scores, and a user's is not."""
    bias = na.ALiBi(HEADS, slopes=na.alibi_slopes(HEADS, na.NTK(4.0)))
    for name, divisor in (("bloom", 1.0), ("falcon", 4.0)):
        with na.patch(models[name], na.NTK(4.0)):
            expected = run(models[name], ids)
        slopes = np.asarray(bias.slopes) / np.float32(divisor)
        with na.patch(models[name], na.ALiBi(HEADS, slopes=slopes)):
            torch.testing.assert_close(run(models[name], ids), expected, **LOGITS)


def test_biases_of_layers_are_theirs(models: dict) -> None:
    model, kerple = models["mpt"], BIASES["kerple log"]
    with na.patch(model, {1: kerple}) as handle:
        assert handle.bias == {1: kerple}
    learned = learned_bias.LearnedALiBi(HEADS)
    with na.patch(model, {0: kerple, 2: learned}):
        assert [name for name, _ in model.named_parameters() if "ntk_alibi" in name] == [
            "transformer.ntk_alibi_bias.2.slopes.log_slopes"
        ]
        run(model, ids)
    assert not any("ntk_alibi" in name for name, _ in model.named_parameters())


def learned(name: str, **options: Any) -> tuple[Any, Any]:
    """Return a model, and the learned bias with which it is patched."""
    model, bias = make_model(name), learned_bias.LearnedALiBi(HEADS)
    na.patch(model, bias, **options)
    return model, bias


@families
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_gradients_reach_a_learned_bias(name: str, reentrant: Any) -> None:
    def gradient(attention: Any, reentrant: Any) -> torch.Tensor:
        model, bias = learned(name, attention=attention)
        model.train()
        if reentrant is not None:
            enable_checkpointing(model, {"use_reentrant": reentrant})
        model(ids, labels=ids, use_cache=False).loss.backward()
        found: torch.Tensor = bias.slopes.log_slopes.grad
        return found

    expected = gradient("eager", None)
    assert expected.abs().max() > 1e-5
    torch.testing.assert_close(gradient("fused", reentrant), expected, rtol=1e-4, atol=1e-7)


class Unnamed:
    """A bias with the one method, which does not say what its parameters are."""

    num_heads, sides = HEADS, "causal"

    def __init__(self) -> None:
        self.log_slopes = torch.full((HEADS,), -2.0, requires_grad=True)

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        slopes = self.log_slopes.exp()[None, :, None]
        return KernelBias(slopes, torch.full_like(slopes, torch.inf))


@pytest.mark.parametrize("attention", ["eager", "fused"])
def test_gradients_reach_a_bias_that_names_no_parameters(attention: str) -> None:
    def gradient(reentrant: bool | None) -> torch.Tensor:
        model, bias = make_model("falcon"), Unnamed()
        na.patch(model, bias, attention=attention)
        model.train()
        if reentrant is not None:
            enable_checkpointing(model, {"use_reentrant": reentrant})
        model(ids, labels=ids, use_cache=False).loss.backward()
        found: torch.Tensor = bias.log_slopes.grad
        return found

    expected = gradient(None)
    assert expected.abs().max() > 1e-5
    for reentrant in (False, True):
        torch.testing.assert_close(gradient(reentrant), expected, rtol=1e-4, atol=1e-7)


def test_it_is_refused_where_nothing_shows_that_it_requires_grad() -> None:
    """The eager form computes in torch in any case; the fused one would take it for constant."""
    model, bias = make_model("falcon").requires_grad_(False), Unnamed()
    with na.patch(model, bias, attention="eager"):
        model(ids, labels=ids).loss.backward()
    assert bias.log_slopes.grad.abs().max() > 1e-5
    with na.patch(model, bias), pytest.raises(ValueError, match="bias must not require grad here"):
        model(ids)


def test_an_optimizer_moves_it_and_a_copy_has_its_own() -> None:
    model, bias = learned("bloom")
    before, other = run(model, ids), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0)
    model(ids, labels=ids).loss.backward()
    for parameter in model.parameters():
        if parameter is not bias.slopes.log_slopes:
            parameter.grad = None
    optimizer.step()
    assert (run(model, ids) - before).abs().max() > 1e-3
    assert torch.equal(run(other, ids), before)
    na.unpatch(model)
    assert not hasattr(model.transformer, "ntk_alibi_bias")


def test_saving_keeps_its_weights(tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, bias = learned("mpt")
    bias.slopes.log_slopes.data += 0.3
    expected = run(model, ids)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    na.patch(loaded, learned_bias.LearnedALiBi(HEADS))
    assert (run(loaded, ids) - expected).abs().max() > 1e-3
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    loaded.load_state_dict(weights)
    torch.testing.assert_close(run(loaded, ids), expected, **LOGITS)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # PEFT asks for it
def test_peft_freezes_it_and_modules_to_save_trains_it(tmp_path: Any) -> None:
    peft = pytest.importorskip("peft")
    for saved in (None, ["ntk_alibi_bias"]):
        model, bias = learned("bloom")
        config = peft.LoraConfig(target_modules=["query_key_value"], modules_to_save=saved)
        tuned = peft.get_peft_model(model, config)
        names = [n for n, p in tuned.named_parameters() if p.requires_grad and "ntk_alibi" in n]
        assert len(names) == (0 if saved is None else 1)
        tuned(ids, labels=ids).loss.backward()
        assert bias.slopes.log_slopes.grad is None
        for name in names:
            assert tuned.get_parameter(name).grad.abs().max() > 1e-6
