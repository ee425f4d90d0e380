"""How the tokens of a pass reach the layers: by `model.forward(...)` too, and in every family."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import ntk_alibi as na
import ntk_alibi.integrations  # registers the name
from model_runs import BATCH, LENGTH, LOGITS, MASKS, batch, real
from ntk_alibi.integrations.arguments import CACHE
from small_models import VOCABULARY

SIZES = {"vocab_size": VOCABULARY, "num_layers": 2, "num_heads": 4, "d_model": 32, "d_kv": 8}
SMALL = {"d_ff": 32, "relative_attention_max_distance": 20}


def _t5(**config: Any) -> Any:
    return transformers.T5EncoderModel(transformers.T5Config(**{**SIZES, **SMALL, **config}))


def _decoder(**config: Any) -> Any:
    given = {"decoder_start_token_id": 0, **SIZES, **SMALL, **config}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**given)).decoder


def _pix2struct(**config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "d_kv": 8, "d_ff": 32}
    sizes |= {"num_layers": 2, "num_heads": 4, "is_decoder": True}
    own = transformers.Pix2StructTextConfig(**sizes, **config)
    own.initializer_range = 0.1  # transformers asks for it, and has none
    return transformers.Pix2StructTextModel(own)


def _mpnet(**config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 32}
    return transformers.MPNetModel(transformers.MPNetConfig(**sizes, **config))


def _bloom(**config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    return transformers.BloomModel(transformers.BloomConfig(**sizes, **config))


def _mpt(**config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return transformers.MptModel(transformers.MptConfig(**sizes, **config))


def _falcon(**config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "alibi": True}
    return transformers.FalconModel(transformers.FalconConfig(**sizes, **config))


#: Inner models, as libraries of embeddings hold them.
INNER = {
    "bloom": _bloom,
    "mpt": _mpt,
    "falcon": _falcon,
    "t5 encoder": _t5,
    "t5 decoder": _decoder,
    "pix2struct": _pix2struct,
    "mpnet": _mpnet,
}
inner = pytest.mark.parametrize("name", INNER)


def make_inner(name: str, **config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = INNER[name](**config)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(0, 0.15)
    return model.eval()


def states(output: Any) -> torch.Tensor:
    """Return the hidden states, or logits, of an output."""
    found: torch.Tensor = output[0]
    return found


def probe(like: torch.Tensor) -> torch.Tensor:
    """Return fixed random values: sums of normalised states have no gradient."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(3))


@inner
def test_the_forward_method_of_a_model_made_with_the_name(name: str) -> None:
    model, ids, mask = make_inner(name), batch(), MASKS["left"]
    made = make_inner(name, attn_implementation="ntk_alibi")
    made.load_state_dict(model.state_dict())
    with torch.no_grad(), na.patch(model):
        expected = states(model(ids, attention_mask=mask))[real(mask)]
        assert torch.equal(states(made.forward(ids, attention_mask=mask))[real(mask)], expected)


@inner
def test_training_by_the_forward_method(name: str) -> None:
    model, ids, mask = make_inner(name).train(), batch(), MASKS["right"]
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        output = states(model.forward(ids, attention_mask=mask))[real(mask)]
        (output * probe(output)).sum().backward()
        return [x.grad.clone() for x in model.parameters() if x.grad is not None]

    stock = gradients()
    with na.patch(model):
        ours = gradients()
    assert len(ours) == len(stock)
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


@inner
def test_weights_by_the_forward_method(name: str) -> None:
    model, given = make_inner(name), {"input_ids": batch()}
    if "decoder" in name:
        given["encoder_hidden_states"] = torch.randn(BATCH, 7, 32)
    with torch.no_grad(), na.patch(model):
        weights = model.forward(**given, output_attentions=True).attentions
        assert [tuple(x.shape) for x in weights] == [(BATCH, 4, LENGTH, LENGTH)] * 2
        assert torch.allclose(weights[0].sum(dim=-1), torch.ones(()))


@inner
def test_models_that_share_a_configuration(name: str) -> None:
    """A patch changes one model, and its undo brings that model's configuration back."""
    a = make_inner(name)
    b, ids, config = copy.deepcopy(a), batch(), a.config
    b.config = config
    named = config._attn_implementation
    before = config.to_dict()
    with torch.no_grad():
        stock = states(b(ids))
        first = na.patch(a, window=5)
        limited = states(a(ids))
        assert not torch.equal(limited, stock)
        assert torch.equal(states(b(ids)), stock)
        second = na.patch(b, window=5)
        first.undo()
        assert torch.equal(states(a(ids)), stock)
        assert torch.equal(states(b(ids)), limited)
        second.undo()
        assert torch.equal(states(b(ids)), stock)
    assert a.config is b.config is config
    assert config._attn_implementation == named
    assert config.to_dict() == before


@inner
def test_copies_of_a_patched_model_share_what_they_shared(name: str) -> None:
    model, ids = make_inner(name), batch()
    with torch.no_grad(), na.patch(model, window=5):
        expected = states(model(ids))
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        for made in copies:
            assert torch.equal(states(made.forward(ids)), expected)
            made.config.use_cache = False
            na.unpatch(made)
            assert made.config.use_cache is False
        assert torch.equal(states(model(ids)), expected)
    with torch.no_grad():
        for made in copies:
            torch.testing.assert_close(states(made(ids)), states(model(ids)))


@inner
def test_the_configuration_of_a_patched_model_is_the_models_own(name: str) -> None:
    model = make_inner(name)
    own = model.config
    with na.patch(model):
        assert isinstance(model.config, type(own))
        assert type(model.config).__name__ == type(own).__name__
        assert model.config.to_dict() == own.to_dict()
        model.config.use_cache = False
        assert own.use_cache is False
        own.use_cache = True
        assert model.config.use_cache is True
    assert model.config is own


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "mpnet"])
def test_replicas_are_refused(name: str) -> None:
    """torch.nn.DataParallel copies what binds a layer's forward to the original."""
    model = make_inner(name)
    with na.patch(model), pytest.raises(ValueError, match=r"must not be patched in torch.nn.DataP"):
        model._replicate_for_data_parallel()
    assert model._replicate_for_data_parallel() is not model


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
def test_several_texts_in_a_row_of_the_forward_method(name: str) -> None:
    """Without hooks, what BLOOM and MPT drop is not seen; transformers tells Falcon's layers."""
    model, ids = make_inner(name), batch()
    positions = torch.cat([torch.arange(10), torch.arange(LENGTH - 10)])[None]
    with torch.no_grad(), na.patch(model):
        if name == "falcon" and CACHE == "cache":  # older versions do not tell its layers
            with pytest.raises(ValueError, match=r"position_ids must rise .* call model\(\.\.\.\)"):
                model.forward(ids, position_ids=positions, use_cache=False)
        else:
            model.forward(ids, use_cache=False)
        packed = states(model(ids, position_ids=positions, use_cache=False))
        alone = states(model(ids[:, 10:], use_cache=False))
    torch.testing.assert_close(packed[:, 10:], alone, **LOGITS)


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
def test_a_decoder_that_should_see_ahead_is_refused(name: str) -> None:
    model = make_inner(name)
    model.config.is_causal = False
    with (
        na.patch(model),
        pytest.raises(ValueError, match=r"config\.is_causal must be True"),
    ):
        model(batch())


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
@pytest.mark.parametrize("attention", ["fused", "eager"])
@pytest.mark.parametrize("growing", [False, True])
def test_a_trained_prefix_of_a_frozen_model_gets_its_gradient(
    name: str, attention: Any, growing: bool
) -> None:
    """As in prefix tuning: no weight is recorded, but the keys of the cache are."""
    model, ids = make_inner(name).requires_grad_(False), batch()
    heads = 1 if name == "falcon" else 4
    torch.manual_seed(1)
    prefix = [torch.randn(2, BATCH, heads, 5, 8).requires_grad_() for _ in range(2)]

    def gradients() -> list[torch.Tensor]:
        cache = na.GrowingCache() if growing else transformers.DynamicCache()
        for layer, (keys, values) in enumerate(prefix):
            cache.update(keys, values, layer)
        mask = torch.ones(BATCH, 5 + LENGTH)
        output = states(model(ids, attention_mask=mask, **{CACHE: cache}))
        return list(torch.autograd.grad((output * probe(output)).sum(), prefix))

    stock = gradients()
    with na.patch(model, attention=attention):
        ours = gradients()
    for mine, theirs in zip(ours, stock, strict=True):
        assert theirs.abs().max() > 1e-2
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-3)
