"""JinaBERT and MosaicBERT: what a patch holds, takes back, refuses and saves."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import ntk_alibi as na
from bert_models import CLOSE, HEADS, ids, kinds, layers_of, make, run
from remote_models import mosaic_bert
from remote_models.jina_bert import JinaBertSelfAttention
from remote_models.mosaic_bert import BertUnpadSelfAttention


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


@kinds
def test_nested_patches_and_copies(name: str) -> None:
    model = make(name)
    stock = run(model, ids())
    outer = na.patch(model, na.NTK(4.0))
    alone = run(model, ids())
    inner = na.patch(model, na.FlatHeads(8.0))
    nested = run(model, ids())
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for clone in (copy.deepcopy(model), torch.load(saved, weights_only=False)):
        assert torch.equal(run(clone, ids()), nested)
        na.unpatch(clone)
        assert torch.equal(run(clone, ids()), stock)
    inner.undo()
    assert torch.equal(run(model, ids()), alone)
    outer.undo()
    assert torch.equal(run(model, ids()), stock)


@kinds
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 8}, "window, sink and causal_block must not be given for {name}, an encoder"),
        ({"causal_block": 8}, "window, sink and causal_block must not be given for {name}"),
        ({"attention": "traceable"}, "attention for {name} must be one of"),
        ({"scaling": na.DynamicNTK(1.0, 16, per="query")}, "per='sequence' for {name}, an encoder"),
        ({"scaling": na.DynamicNTK(1.0)}, "train_length must be given for .* of a {name}"),
        ({"scaling": "flat:8:logn=0.5"}, "logn in 'flat:8:logn=0.5' must have a training length"),
        ({"scaling": na.NTK(2.0, layers=(3,))}, "layers must be below 3"),
    ],
    ids=str,
)
def test_what_has_no_meaning_is_refused_by_name(name: str, options: Any, message: str) -> None:
    model = make(name)
    attributes = set(vars(model))
    called = "MosaicBERT" if name == "mosaic" else "JinaBERT"
    with pytest.raises(ValueError, match=message.format(name=called)):
        na.patch(model, **options)
    assert set(vars(model)) == attributes


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


@pytest.mark.needs("transformers != 5.4.*", "it draws the loaded weights of remote code anew")
def test_saving_says_that_the_patch_is_not_saved(tmp_path: Any) -> None:
    model = make("jina")
    stock = run(model, ids())
    not_saved = pytest.warns(UserWarning, match=r"saved without its patch \(NTK.* call na.patch")
    with na.patch(model, na.NTK(4.0)), not_saved:
        model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(run(loaded, ids()), stock)


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
