"""Models that cannot be patched, and models patched by name and configuration."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import transformers
from transformers.models.falcon.modeling_falcon import FalconAttention
from transformers.models.mpt.modeling_mpt import MptModel

import ntk_alibi as na
from model_runs import LENGTH, LOGITS, MASKS, generate, real, run
from small_models import families, make_model
from table_families import shared_model


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("falcon", {"alibi": False}, "must be a Falcon with ALiBi, got one with rotary"),
        ("mpt", {"attn_config": {"alibi": False}}, "whose attn_config.alibi is False"),
    ],
)
def test_models_without_alibi_are_refused(name: str, config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        na.patch(make_model(name, **config))


def test_classes_that_compute_otherwise_are_refused() -> None:
    class OwnAttention(FalconAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    class OwnModel(MptModel):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    class BloomModel(torch.nn.Module):
        """A class with the same name only."""

    falcon, mpt = make_model("falcon"), make_model("mpt")
    falcon.transformer.h[1].self_attention.__class__ = OwnAttention
    with pytest.raises(ValueError, match="of transformers' FalconAttention, got a OwnAttention"):
        na.patch(falcon)
    mpt.transformer.__class__ = OwnModel
    with pytest.raises(ValueError, match="of transformers' MptModel, got a OwnModel"):
        na.patch(mpt)
    with pytest.raises(ValueError, match="got BloomModel"):
        na.patch(BloomModel())


@pytest.mark.parametrize("name", ["mpt", "falcon"])
def test_the_mask_of_another_function_is_read(ids: torch.Tensor, name: str) -> None:
    """A causal mask of transformers says what ours does."""
    model, padding = make_model(name), MASKS["left"]
    with na.patch(model, na.NTK(4.0)):
        expected = run(model, ids, padding)
        model.transformer.config = model.config
        model.config._attn_implementation = "eager"
        found = run(model, ids, padding)[real(padding)]
        torch.testing.assert_close(found, expected[real(padding)], **LOGITS)


@families
def test_masks_of_four_dimensions(models: dict, ids: torch.Tensor, name: str) -> None:
    """The causal mask with padding says what the padding says."""
    padding = MASKS["left"].bool()
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & padding[:, None, None, :]
    added = torch.where(causal, 0.0, torch.finfo(torch.float32).min)
    with na.patch(models[name]):
        expected = run(models[name], ids, padding)
        for mask in (causal, added):
            found = run(models[name], ids, mask)[real(padding)]
            torch.testing.assert_close(found, expected[real(padding)], **LOGITS)
        message = r"attention_mask must have shape .*= \(3, 40\) .* got \(3, 39\)"
        with pytest.raises(ValueError, match=message):
            run(models[name], ids, padding[:, 1:])


@families
@pytest.mark.parametrize(
    "value", [1.0, 1, -5.0, math.nan], ids=["ones", "integers", "a small penalty", "NaN"]
)
def test_masks_of_four_dimensions_hold_values_to_add(
    models: dict, ids: torch.Tensor, name: str, value: float
) -> None:
    """What transformers would add to scores is 0 or hides a key; ones are no hidden keys."""
    message = "attention_mask must be 0 for visible keys and below -1000 for hidden ones"
    model, full = models[name], torch.full((3, 1, LENGTH, LENGTH), value)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    for attention in ("fused", "eager"):
        with na.patch(model, attention=attention):
            for mask in (full, full.where(~causal, 0)):
                with pytest.raises(ValueError, match=message):
                    run(model, ids, mask)


@pytest.mark.parametrize("name", ["t5, encoder", "mpnet", "bloom", "falcon", "pix2struct"])
def test_masks_of_four_dimensions_by_the_forward_method(ids: torch.Tensor, name: str) -> None:
    model = shared_model(name)
    model = getattr(model, "transformer", model)
    wrong = [torch.full((3, 1, LENGTH, LENGTH), value) for value in (1.0, 1, math.nan)]
    message = "attention_mask must be 0 for visible keys and below -1000 for hidden ones"
    with na.patch(model), torch.no_grad():
        for mask in wrong:
            with pytest.raises(ValueError, match=message):
                model.forward(ids, attention_mask=mask)


@families
def test_masks_hold_zeros_and_ones(models: dict, ids: torch.Tensor, name: str) -> None:
    """transformers takes 2, -1 or NaN for 1, and values to add to scores for their opposite."""
    model, padding = models[name], MASKS["left"]
    added = torch.where(padding.bool(), 0.0, -torch.inf)
    wrong = [torch.full(padding.shape, number) for number in (2, -1, 0.5, math.nan)]
    for attention in ("fused", "eager", "traceable"):
        with na.patch(model, attention=attention):
            expected = run(model, ids, padding)
            for dtype in (torch.bool, torch.uint8, torch.float32, torch.bfloat16):
                assert torch.equal(run(model, ids, padding.to(dtype)), expected)
            for mask in (*wrong, added):
                with pytest.raises(ValueError, match="attention_mask must hold only 0 and 1, got"):
                    run(model, ids, mask)


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "falcon, new decoder"])
@pytest.mark.parametrize("scaling", [na.NTK(4.0), na.Knee(6, math.inf)], ids=repr)
def test_by_name_and_configuration(
    models: dict, ids: torch.Tensor, name: str, scaling: Any, tmp_path: Any
) -> None:
    models[name].save_pretrained(tmp_path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(tmp_path, attn_implementation="ntk_alibi").eval()
    stock = run(models[name], ids, MASKS["left"])
    kept = real(MASKS["left"])
    torch.testing.assert_close(run(model, ids, MASKS["left"])[kept], stock[kept], **LOGITS)
    model.config.alibi_scaling = scaling.to_config()
    with na.patch(models[name], scaling):
        expected = run(models[name], ids)
        tokens = generate(models[name], ids, MASKS["left"])
    assert torch.equal(run(model, ids), expected)
    for options in ({}, {"cache_implementation": "static"}):
        assert torch.equal(generate(model, ids, MASKS["left"], **options), tokens)
    with na.patch(model, na.NTK(8.0)):
        assert not torch.equal(run(model, ids), expected)
    assert torch.equal(run(copy.deepcopy(model), ids), expected)
    model.config.alibi_scaling = {"alibi_type": "ntk", "scale": 4.0}
    with pytest.raises(ValueError, match="'factor' is missing; 'scale' is unknown"):
        run(model, ids)


@families
def test_the_name_given_to_a_model_that_was_made_without_it(ids: torch.Tensor, name: str) -> None:
    """transformers' own attention would ignore the scaling, or the mask."""
    model = make_model(name)
    model.config._attn_implementation = "ntk_alibi"
    with pytest.raises(RuntimeError, match="must be given when a model is made, to"):
        run(model, ids)


def test_the_name_given_to_other_models() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(num_attention_heads=2, num_key_value_heads=2, **sizes)
    gpt2 = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=8)
    for other in (config, gpt2):
        message = r"must be given to a model of a known family \(BLOOM, .*, UMT5\), got "
        with pytest.raises(ValueError, match=message):
            transformers.AutoModelForCausalLM.from_config(other, attn_implementation="ntk_alibi")
    llama = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    llama.config._attn_implementation = "ntk_alibi"
    with pytest.raises(RuntimeError, match="or is of another family"):
        llama(torch.zeros((1, 3), dtype=torch.long))
    rotary = transformers.FalconConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    with pytest.raises(ValueError, match="must be a Falcon with ALiBi"):
        transformers.AutoModelForCausalLM.from_config(rotary, attn_implementation="ntk_alibi")


@families
def test_a_configuration_that_asks_for_attention_weights(
    models: dict, ids: torch.Tensor, name: str, tmp_path: Any
) -> None:
    """transformers allows output_attentions with "eager" only, which ours then is."""
    with torch.no_grad():
        expected = models[name](ids, output_attentions=True).attentions
    models[name].save_pretrained(tmp_path)

    def load(**options: Any) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **options).eval()

    asked = load(attn_implementation="ntk_alibi", output_attentions=True)
    later = load(attn_implementation="ntk_alibi")
    assert later(ids).attentions is None
    later.config.output_attentions = True
    asked.save_pretrained(tmp_path)
    for model in (asked, later, load(attn_implementation="ntk_alibi")):
        with torch.no_grad():
            weights = model(ids).attentions
        assert [x.shape for x in weights] == [x.shape for x in expected]
        if name != "falcon":  # stock Falcon adds its bias twice with output_attentions
            for mine, stock in zip(weights, expected, strict=True):
                torch.testing.assert_close(mine, stock, **LOGITS)
    message = "`output_attentions` attribute is not supported when using .* sdpa"
    with pytest.raises(Exception, match=message):  # a class of transformers' own
        load(attn_implementation="sdpa")
    other = type(models[name].config)(attn_implementation="sdpa")
    with pytest.raises(ValueError, match=message):
        other.output_attentions = True
