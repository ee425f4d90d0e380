"""JinaBERT and MosaicBERT: what patched encoders of remote code compute, hold, refuse and save."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ntk_alibi as na
from remote_models import mosaic_bert
from remote_models.jina_bert import JinaBertSelfAttention, small_jina_bert
from remote_models.mosaic_bert import (
    BertConfig,
    BertForMaskedLM,
    BertUnpadSelfAttention,
    small_mosaic_bert,
)

HEADS, ROWS, TOKENS = 6, 3, 29

MAKERS: dict[str, Callable[..., Any]] = {
    "jina": small_jina_bert,
    "jina, buffer": lambda **config: small_jina_bert(alibi_buffer=True, **config),
    "mosaic": small_mosaic_bert,
}
kinds = pytest.mark.parametrize("name", ["jina, buffer", "mosaic"])

#: Float32 sums of 100 terms through three layers with norms, at outputs of about 1.
CLOSE = {"atol": 2e-5, "rtol": 0.0}


def make(name: str, **config: Any) -> Any:
    torch.manual_seed(7)
    return MAKERS[name](**config)


def ids(rows: int = ROWS, tokens: int = TOKENS) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).integers(1, 97, size=(rows, tokens)))


def run(model: Any, given: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model(given, attention_mask=mask)[0]
    return output if mask is None else output[mask != 0]


def layers_of(model: Any) -> list[Any]:
    return [layer.attention.self for layer in model.encoder.layer]


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
    with na.patch(model, na.DynamicInterpolation(1.0, 16)):
        patched = run(model, ids(), mask)
    stock_bias = model.encoder.rebuild_alibi_tensor
    rows = []
    for row, length in enumerate(lengths.tolist()):
        factor = 16 / length  # all rows are longer than 16
        model.encoder.rebuild_alibi_tensor = lambda *a, f=factor, **k: stock_bias(*a, **k) * f
        rows.append(run(model, ids()[row : row + 1], mask[row : row + 1]))
    torch.testing.assert_close(patched, torch.cat(rows), **CLOSE)


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


def held(model: nn.Module) -> int:
    """Return the greatest number of elements of a tensor that a model holds beside its weights."""
    tensors = [x for part in model.modules() for x in vars(part).values()]
    tensors += model.buffers()
    return max((x.numel() for x in tensors if isinstance(x, torch.Tensor)), default=0)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("jina, buffer", torch.float32),
        ("jina, buffer", torch.bfloat16),
        ("mosaic", torch.float32),  # its own code does not run in another dtype
    ],
)
def test_no_bias_of_all_pairs_is_held_and_undo_brings_it_back(
    name: str, dtype: torch.dtype
) -> None:
    model = make(name).to(dtype)
    before, size = model.encoder.alibi.clone(), model.encoder._current_alibi_size
    state, attributes = model.state_dict(), set(vars(model.encoder))
    handle = na.patch(model, na.NTK(4.0))
    assert held(model) <= HEADS
    assert model.state_dict().keys() == state.keys()
    run(model, ids(1, 80))  # longer than any bias that the model makes when it is made
    assert held(model) <= HEADS
    handle.undo()
    assert torch.equal(model.encoder.alibi, before)
    assert model.encoder.alibi.dtype == before.dtype
    assert model.encoder._current_alibi_size == size
    assert set(vars(model.encoder)) == attributes
    assert not [x for part in model.modules() for x in vars(part) if "ntk_alibi" in x]


def test_undo_follows_a_model_that_changed_its_dtype() -> None:
    model = make("jina, buffer")
    with na.patch(model):
        model.bfloat16()
    assert torch.equal(model.encoder.alibi, make("jina, buffer").bfloat16().encoder.alibi)


@pytest.mark.parametrize(
    ("layer_class", "name"), [(JinaBertSelfAttention, "jina"), (BertUnpadSelfAttention, "mosaic")]
)
def test_a_changed_layer_is_found_by_its_numbers(
    layer_class: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, stock = make(name), layer_class.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        bias = kwargs.pop("bias", args[-1])
        args = args if "bias" in kwargs else args[:-1]
        return stock(self, *args, bias=bias * 0.9, **kwargs)  # another base of slopes

    monkeypatch.setattr(layer_class, "forward", forward)
    before, attributes = run(model, ids()), set(vars(model))
    with pytest.raises(RuntimeError, match=r"must compute what the patch of .* differ by \d"):
        na.patch(model, na.NTK(4.0))
    assert torch.equal(run(model, ids()), before)
    assert set(vars(model)) == attributes
    assert na.patched(model) == []


def test_a_decoder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model must be an encoder, got a JinaBERT with is_dec"):
        na.patch(make("jina", is_decoder=True))


def test_a_triton_kernel_that_does_not_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs, and with newer Tritons, the model's own code fails; a patched model needs none."""
    model = make("mosaic")
    expected = run(model, ids())

    def kernel(*_: Any) -> Any:
        raise RuntimeError("no Triton")

    monkeypatch.setattr(mosaic_bert, "flash_attn_qkvpacked_func", kernel)
    with pytest.raises(RuntimeError, match="no Triton"):
        run(model, ids())
    with na.patch(model):
        torch.testing.assert_close(run(model, ids()), expected, **CLOSE)
    assert layers_of(model)[0].p_dropout == 0.0
