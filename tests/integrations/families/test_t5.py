"""T5's relatives and MPNet, patched, against transformers' own eager attention."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import DynamicCache

import ntk_alibi as na
from model_runs import BATCH, LENGTH, LOGITS, MASKS, batch
from ntk_alibi.integrations.arguments import CACHE
from small_models import RELATIVES, T5_CHANNELS, T5_HEADS, VOCABULARY, make_relative

#: The two smallest in the quick tests, the others in the slow ones.
QUICK = ("T5", "MPNet")
quick = pytest.mark.parametrize("name", QUICK)
relatives = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RELATIVES]
)

#: Right padding of the decoder's rows would cut a text that generate() goes on with.
DECODER_MASK = torch.ones((BATCH, 23), dtype=torch.long)
DECODER_MASK[1, :4] = 0


def output(model: Any, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    """Return the results of real tokens: an encoder's states, and logits of a decoder."""
    ids = batch()
    own = {"attention_mask": mask, **options}
    kept = torch.ones_like(ids) if mask is None else mask
    name = type(model).__name__
    if name.startswith("MPNet"):
        return model(ids, **own).logits[kept != 0]
    states = torch.randn((BATCH, LENGTH, 64), generator=torch.Generator().manual_seed(2))
    if name.startswith("Pix2Struct"):
        given = {"encoder_hidden_states": states, "encoder_attention_mask": mask, **options}
        logits = model(ids[:, :23], attention_mask=DECODER_MASK, **given).logits
        return logits[DECODER_MASK != 0]
    if name.startswith("Pop2Piano"):  # its forward takes features of sounds
        own["inputs_embeds"] = states[..., :T5_CHANNELS]
    else:
        own["input_ids"] = ids
    made = model(**own, decoder_input_ids=ids[:, :23].flip(1), decoder_attention_mask=DECODER_MASK)
    encoded = made.encoder_last_hidden_state[kept != 0]
    return torch.cat([encoded.flatten(), made.logits[DECODER_MASK != 0].flatten()])


def without_grad(model: Any, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    """Return `output` of a pass that autograd does not follow."""
    with torch.no_grad():
        return output(model, mask, **options)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_relative("T5")


def test_patches_nest_and_are_undone_to_the_bit(model: Any) -> None:
    stock = without_grad(model)
    first = na.patch(model)
    plain = without_grad(model)
    second = na.patch(model, window=5)
    assert [x.attention for x in na.patched(model)] == ["fused", "fused"]
    assert "patch of T5, learned buckets, attention='fused', window=5" in repr(second)
    near = without_grad(model)
    assert not torch.allclose(near, plain, atol=1e-2)
    second.undo()
    assert torch.equal(without_grad(model), plain)
    clones = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    first.undo()
    assert torch.equal(without_grad(model), stock)
    for clone in clones:
        assert torch.equal(without_grad(clone), plain)
        na.unpatch(clone)
        assert torch.equal(without_grad(clone), stock)
    na.patch(model, window=5)
    na.unpatch(model)
    assert na.patched(model) == []
    assert torch.equal(without_grad(model), stock)


@quick
def test_no_matrix_of_all_pairs_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the bias, nor the zeros of cross-attention, nor a mask."""
    model, sizes = make_relative(name), []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
            result = func(*args, **(kw or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.numel())
            return result

    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with na.patch(model), Sizes():
        output(model, MASKS["left"])
    ours = max(sizes)
    sizes.clear()
    with Sizes():
        output(model, MASKS["left"])
    logits = BATCH * LENGTH * VOCABULARY
    assert ours == logits < BATCH * T5_HEADS * LENGTH**2 <= max(sizes)


@quick
def test_a_bias_of_the_users_own(name: str) -> None:
    model = make_relative(name)
    bias = na.KerpleLog(np.linspace(0.1, 1.0, T5_HEADS), np.ones(T5_HEADS))
    results = []
    for attention in ("fused", "eager"):
        with na.patch(model, bias, attention=attention):
            results.append(without_grad(model, MASKS["left"]))
    torch.testing.assert_close(*results, **LOGITS)
    stock = without_grad(model, MASKS["left"])
    assert not torch.allclose(results[0], stock, atol=1e-2)
    for layer in (0, 1):  # the others keep their table
        with na.patch(model, {layer: bias}):
            one = without_grad(model, MASKS["left"])
        assert not torch.allclose(one, stock, atol=1e-3)
        assert not torch.allclose(one, results[0], atol=1e-3)
    with pytest.raises(ValueError, match="must be a bias of both sides for an encoder"):
        na.patch(model, na.ALiBi(T5_HEADS))
    with pytest.raises(ValueError, match="layers below 2"):
        na.patch(model, {2: bias})
    with pytest.raises(ValueError, match="bias of the model's 4 heads"):
        na.patch(model, na.ALiBi(T5_HEADS + 1, sides="symmetric"))
    assert torch.equal(without_grad(model, MASKS["left"]), stock)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": na.NTK(4.0)}, "method must be None or a bias for T5, which has learned"),
        ({"method": "flat:8"}, "method must be None or a bias for T5, which has learned"),
        ({"attention": "traceable"}, "attention for T5 must be one of 'fused', 'eager'"),
        ({"window": 4, "sink": 2}, "sink must be 0 for T5, got 2"),
        ({"causal_block": 4}, "causal_block must be None for T5, got 4"),
        ({"log_n": 512}, r"log_n must be None for T5, got LogN"),
    ],
    ids=str,
)
def test_options_without_meaning_are_refused(model: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        na.patch(model, **options)
    assert na.patched(model) == []


def test_other_masks_are_refused(model: Any) -> None:
    ids, mask = batch(), torch.ones((BATCH, LENGTH))
    dense = torch.ones((BATCH, 1, LENGTH, LENGTH - 1), dtype=torch.bool)
    encoded = {"encoder_hidden_states": torch.randn((BATCH, LENGTH, T5_CHANNELS))}
    with na.patch(model):
        for wrong in (dense, mask[:, 1:]):
            with pytest.raises(ValueError, match="attention_mask must have shape"):
                model.encoder(ids, attention_mask=wrong)
            with pytest.raises(ValueError, match="encoder_attention_mask must have shape"):
                model.decoder(ids, encoder_attention_mask=wrong, **encoded)
        with pytest.raises(ValueError, match=f"{CACHE} must be an EncoderDecoderCache"):
            model.decoder(ids, **{CACHE: DynamicCache()}, **encoded)


def test_a_class_that_computes_otherwise_is_refused() -> None:
    model = make_relative("T5")

    class Other(type(model.encoder.block[0].layer[0].SelfAttention)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    model.decoder.block[1].layer[1].EncDecAttention.__class__ = Other
    with pytest.raises(ValueError, match="of transformers' T5Attention, got a Other"):
        na.patch(model)
    assert na.patched(model) == []  # the encoder is not patched either


def test_mpnet_needs_the_buckets_that_transformers_reads() -> None:
    config = transformers.MPNetConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, relative_attention_num_buckets=16,
    )  # fmt: skip
    with pytest.raises(ValueError, match="must have 32 buckets"):
        na.patch(transformers.MPNetModel(config))


@relatives
def test_by_name_and_configuration(name: str, tmp_path: Any) -> None:
    model = make_relative(name)
    kind = type(model)
    if name == "Pix2Struct":
        pytest.skip("transformers cannot make its text model from its own configuration")
    mask = MASKS["left"]
    stock = without_grad(model, mask)
    with na.patch(model, window=7):
        near = without_grad(model, mask)
        model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="alibi_window, which only a model made with"):
        plain = kind.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(without_grad(plain, mask), stock, **LOGITS)
    ours = kind.from_pretrained(tmp_path, attn_implementation="ntk_alibi").eval()
    assert torch.equal(without_grad(ours, mask), near)
    ours = kind.from_pretrained(
        tmp_path, attn_implementation="ntk_alibi", alibi_window=None, alibi_attention="eager"
    ).eval()
    torch.testing.assert_close(without_grad(ours, mask), stock, **LOGITS)
    with pytest.raises(ValueError, match=f"method must be None or a bias for {name}"):
        kind.from_pretrained(tmp_path, attn_implementation="ntk_alibi", alibi_scaling=na.NTK(4.0))


def test_the_name_given_to_a_model_that_was_made_without_it() -> None:
    model = make_relative("T5")
    for part in model.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = "ntk_alibi"
    with pytest.raises(RuntimeError, match=r"must be given when a .* is made"):
        without_grad(model, MASKS["left"])


@pytest.mark.slow
@quick
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    model = make_relative(name).to(dtype)
    stock = without_grad(model, MASKS["left"])
    with na.patch(model):
        ours = without_grad(model, MASKS["left"])
    assert ours.dtype == stock.dtype
    error = 8 * torch.finfo(dtype).eps * float(stock.abs().max())
    torch.testing.assert_close(ours, stock, atol=max(error, 1e-10), rtol=0.0)
