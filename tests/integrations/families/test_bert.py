"""JinaBERT and MosaicBERT: what patched encoders of remote code compute."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from bert_models import (
    CLOSE,
    HEADS,
    MAKERS,
    ROWS,
    TOKENS,
    ids,
    kinds,
    layers_of,
    make,
    run,
)
from remote_models.mosaic_bert import BertConfig, BertForMaskedLM

every_model = pytest.mark.parametrize("name", MAKERS)
sides = pytest.mark.parametrize("side", ["none", "ones", "right", "left", "holes"])


def padding(side: str) -> torch.Tensor | None:
    mask = torch.ones(ROWS, TOKENS, dtype=torch.long)
    if side == "right":
        mask[0, -9:] = mask[1, -1:] = 0
    elif side == "left":
        mask[0, :9] = mask[1, :1] = 0
    elif side == "holes":
        mask[0, 5:9] = mask[1, -4:] = mask[1, 2] = 0
    return None if side == "none" else mask


@every_model
@sides
@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_without_scaling_it_is_the_model(name: str, side: str, attention: Any) -> None:
    model, mask = make(name), padding(side)
    stock = run(model, ids(), mask)
    with na.patch(model, attention=attention):
        torch.testing.assert_close(run(model, ids(), mask), stock, **CLOSE)
    assert torch.equal(run(model, ids(), mask), stock)


@kinds
@pytest.mark.parametrize(
    "scaling",
    [
        na.NTK(4.0),
        na.Interpolation(4.0),
        na.FlatHeads(8.0),
        na.Knee(8, 4.0),
        na.DynamicInterpolation(1.0, 16, per="sequence"),
        na.DynamicNTK(1.0, 16, per="sequence"),
        na.NTK(8.0, layers=(1,)),
    ],
    ids=repr,
)
def test_a_layer_agrees_with_the_reference(name: str, scaling: Any) -> None:
    """Each attention layer of the patched model, on its own input, in rows with holes."""
    model, mask = make(name), padding("holes")
    assert mask is not None
    seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for number, layer in enumerate(layers_of(model)):
        layer.register_forward_hook(
            lambda _, args, output, number=number: seen.append((number, args[0], output))
        )
    with na.patch(model, scaling):
        seen.clear()
        run(model, ids(), mask)
    assert [number for number, *_ in seen] == [0, 1, 2]
    for number, given, output in seen:
        layer = layers_of(model)[number]
        if name == "mosaic":  # rows one after the other, without padding
            packed = torch.zeros(ROWS, TOKENS, given.shape[-1])
            packed[mask != 0] = given
            query, key, value = layer.Wqkv(packed).chunk(3, dim=-1)
        else:
            query, key, value = layer.query(given), layer.key(given), layer.value(given)
            output = output[0][mask != 0]
        applies = getattr(scaling, "layers", None) in (None, (number,))
        numbers = [_heads(x).numpy() for x in (query.detach(), key.detach(), value.detach())]
        rows = []
        for row, real in enumerate(mask.numpy() != 0):
            bias = _reference_bias(scaling if applies else None, int(real.sum()))
            bias = np.where(real, bias, -np.inf)
            context = na.reference.attention(*(x[row : row + 1] for x in numbers), bias)[0]
            rows.append(context[0].swapaxes(0, 1).reshape(TOKENS, -1)[real])
        wanted = torch.from_numpy(np.concatenate(rows)).float()
        torch.testing.assert_close(output.detach(), wanted, **CLOSE)


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(2, (HEADS, -1)).transpose(1, 2)


def _reference_bias(scaling: Any, count: int) -> Any:
    """Return the symmetric bias (1, heads, tokens, tokens) of a row with so many real tokens."""
    if isinstance(scaling, na.Knee):
        slopes = na.alibi_slopes(HEADS)
        return na.reference.knee_bias(slopes, scaling.start, scaling.factor, TOKENS, TOKENS)
    if getattr(scaling, "layers", None):
        scaling = na.NTK(scaling.factor)
    lengths = [count] if getattr(scaling, "per", None) else None
    slopes = na.alibi_slopes(HEADS, scaling, lengths).reshape(HEADS)
    return na.reference.symmetric_bias(slopes, TOKENS, TOKENS)


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


@kinds
def test_log_n_counts_the_real_tokens_of_a_row(name: str) -> None:
    model, mask = make(name), padding("right")
    assert mask is not None
    with na.patch(model, log_n=16):
        together = run(model, ids(), mask)
        rows = [run(model, ids()[i : i + 1, :n]) for i, n in enumerate(mask.sum(dim=1).tolist())]
    torch.testing.assert_close(together, torch.cat([x.flatten(0, 1) for x in rows]), **CLOSE)
    assert not torch.allclose(together, run(model, ids(), mask), atol=1e-3)


def random_like(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(2))


@every_model
def test_gradients(name: str) -> None:
    model, mask = make(name), padding("right")
    assert mask is not None

    def gradients() -> list[torch.Tensor]:
        output = model(ids(), attention_mask=mask)[0][mask != 0]
        parameters = [x for x in model.parameters() if x.requires_grad]
        made = torch.autograd.grad(
            (output * random_like(output)).sum(), parameters, allow_unused=True
        )
        return [x for x in made if x is not None]

    wanted = gradients()
    with na.patch(model):
        got = gradients()
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        scale = float(theirs.abs().max())
        # Those of key biases are sums that cancel, of terms of about 1.
        torch.testing.assert_close(ours, theirs, atol=1e-4 * scale + 2e-5, rtol=0.0)


@kinds
def test_dropout_in_training(name: str) -> None:
    model = make(name, attention_probs_dropout_prob=0.4, hidden_dropout_prob=0.0)
    with na.patch(model, na.NTK(2.0)):
        still = run(model, ids())
        model.train()
        torch.manual_seed(0)
        first = run(model, ids())
        assert not torch.allclose(first, still, atol=1e-3)
        torch.manual_seed(0)
        assert torch.equal(run(model, ids()), first)
        model.eval()
        assert torch.equal(run(model, ids()), still)


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
