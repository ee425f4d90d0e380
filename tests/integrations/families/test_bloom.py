"""BLOOM: what test_families.py does not ask of all families."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.bloom import modeling_bloom

import ntk_alibi as na
from model_runs import MASKS, run
from small_models import attentions, make_model


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("heads", [8, 12])
def test_no_scaling_in_the_eager_form_keeps_every_bit(
    ids: torch.Tensor, heads: int, mask: Any
) -> None:
    model = make_model("bloom", heads)
    stock = run(model, ids, mask)
    with na.patch(model, attention="eager"):
        assert torch.equal(run(model, ids, mask), stock)


def test_the_activation_is_the_same_formula(models: dict) -> None:
    gelu = models["bloom"].transformer.h[0].mlp.gelu_impl
    x = torch.linspace(-9, 9, 4001).requires_grad_()
    stock = gelu(x)
    (slope,) = torch.autograd.grad(stock.sum(), [x])
    with na.patch(models["bloom"]):
        ours = gelu(x)
        (other,) = torch.autograd.grad(ours.sum(), [x])
        # At most eight roundings of values up to 9; derivatives are sums of a few up to 1.2.
        torch.testing.assert_close(ours, stock, rtol=0, atol=8 * 2.0**-24 * 9)
        torch.testing.assert_close(other, slope, rtol=0, atol=2e-6)
        assert not torch.equal(ours, stock)
        with na.patch(models["bloom"], attention="eager"):
            assert torch.equal(gelu(x), stock)
    assert torch.equal(gelu(x), stock)


def test_the_published_way_misses_unpadded_prompts_and_ours_does_not(
    models: dict, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published recipes replace the function, which works for masked calls only."""
    model, stock = models["bloom"], run(models["bloom"], ids)

    def published(mask: Any, heads: int, dtype: Any) -> Any:
        return na.build_alibi_tensor(mask, heads, dtype, na.NTK(4.0))

    monkeypatch.setattr(modeling_bloom, "build_alibi_tensor", published)
    masked = run(model, ids, MASKS["ones"])
    unmasked_follows = not torch.equal(run(model, ids), stock)
    monkeypatch.undo()
    with na.patch(model, na.NTK(4.0), attention="eager"):
        assert torch.equal(run(model, ids, MASKS["ones"]), masked)
        assert torch.equal(run(model, ids), masked)
    inlined = hasattr(modeling_bloom, "_get_alibi_slopes")  # transformers >= 5.21
    assert unmasked_follows != inlined


@attentions
def test_embeddings_positional_arguments_and_the_bare_model(
    models: dict, ids: torch.Tensor, attention: Any
) -> None:
    bare = models["bloom"].transformer
    with torch.no_grad(), na.patch(bare, na.NTK(4.0), attention=attention):
        expected = bare(ids, attention_mask=MASKS["left"]).last_hidden_state
        positional = bare(ids, None, MASKS["left"]).last_hidden_state
        embedded = bare(
            inputs_embeds=bare.word_embeddings(ids), attention_mask=MASKS["left"].bool()
        ).last_hidden_state
    assert torch.equal(positional, expected)
    assert torch.equal(embedded, expected)
