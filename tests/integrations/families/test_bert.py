"""JinaBERT and MosaicBERT: what patched encoders of remote code compute."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import ntk_alibi as na
from bert_models import (
    CLOSE,
    HEADS,
    ROWS,
    TOKENS,
    ids,
    kinds,
    layers_of,
    make,
    run,
)
from remote_models.mosaic_bert import BertConfig, BertForMaskedLM


def padding(side: str) -> torch.Tensor | None:
    mask = torch.ones(ROWS, TOKENS, dtype=torch.long)
    if side == "right":
        mask[0, -9:] = mask[1, -1:] = 0
    elif side == "left":
        mask[0, :9] = mask[1, :1] = 0
    elif side == "holes":
        mask[0, 5:9] = mask[1, -4:] = mask[1, 2] = 0
    return None if side == "none" else mask


def test_jinas_own_interpolation_is_one_by_row() -> None:
    """Its draft multiplies the bias by 512 / real tokens of the row; here 16 in place of 512."""
    model, mask = make("jina"), padding("right")
    assert mask is not None
    lengths = mask.sum(dim=1)
    with na.patch(model, na.DynamicInterpolation(1.0, 16, per="sequence")):
        patched = run(model, ids(), mask)
    stock_bias = model.encoder.rebuild_alibi_tensor
    rows = []
    for row, length in enumerate(lengths.tolist()):
        factor = 16 / length  # all rows are longer than 16
        model.encoder.rebuild_alibi_tensor = lambda *a, f=factor, **k: stock_bias(*a, **k) * f
        rows.append(run(model, ids()[row : row + 1], mask[row : row + 1]))
    torch.testing.assert_close(patched, torch.cat(rows), **CLOSE)


@kinds
def test_a_bias_of_the_users_own(name: str) -> None:
    model, mask = make(name), padding("right")
    plain = run(model, ids(), mask)
    with na.patch(model, na.ALiBi(HEADS, sides="symmetric")):
        torch.testing.assert_close(run(model, ids(), mask), plain, **CLOSE)
    with na.patch(model, {1: na.T5(np.zeros((HEADS, 32), np.float32))}):
        other = run(model, ids(), mask)
    assert not torch.allclose(other, plain, atol=1e-2)
    with pytest.raises(ValueError, match="must be a bias of both sides for an encoder"):
        na.patch(model, na.ALiBi(HEADS))


def random_like(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(2))


def test_jina_gives_weights_and_takes_a_mask_of_heads() -> None:
    model, mask = make("jina, buffer"), padding("right")
    heads = torch.rand(HEADS, generator=torch.Generator().manual_seed(1))
    wanted = model(ids(), mask, output_attentions=True)
    without = model(ids(), mask, head_mask=heads)[0][mask != 0]
    with na.patch(model):
        got = model(ids(), mask, output_attentions=True)
        torch.testing.assert_close(
            model(ids(), mask, head_mask=heads)[0][mask != 0], without, **CLOSE
        )
    assert len(got.attentions) == 3
    for ours, theirs in zip(got.attentions, wanted.attentions, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_gradient_checkpointing() -> None:
    model = make("jina", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model.encoder.gradient_checkpointing, mask = True, padding("right")

    def gradient() -> torch.Tensor:
        model.zero_grad()
        output = model(ids(), attention_mask=mask)[0]
        (output * random_like(output)).sum().backward()
        made: torch.Tensor = layers_of(model)[0].query.weight.grad.clone()
        return made

    model.train()
    wanted = gradient()
    with na.patch(model):
        got = gradient()
    torch.testing.assert_close(got, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0.0)


def test_mosaic_counts_masked_tokens_alone_in_its_last_layer() -> None:
    torch.manual_seed(7)
    model, mask = BertForMaskedLM(BertConfig()).eval(), padding("right")
    labels = torch.full((ROWS, TOKENS), -100)
    labels[:, 3:6] = 5
    stock = model(ids(), mask, labels).loss
    with na.patch(model), warnings.catch_warnings():
        torch.testing.assert_close(model(ids(), mask, labels).loss, stock, **CLOSE)


def test_half_precision() -> None:
    model = make("jina").bfloat16()
    exact = run(make("jina"), ids())
    with na.patch(model):
        ours = run(model, ids()).float()
    theirs = run(model, ids()).float()
    assert float((ours - exact).abs().max()) <= 1.5 * float((theirs - exact).abs().max())


@kinds
def test_autocast(name: str) -> None:
    model = make(name)
    exact = run(model, ids(), padding("right"))
    with torch.autocast("cpu", torch.bfloat16):
        theirs = run(model, ids(), padding("right")).float()
        with na.patch(model):
            ours = run(model, ids(), padding("right")).float()
    assert float((ours - exact).abs().max()) <= 1.5 * float((theirs - exact).abs().max())
