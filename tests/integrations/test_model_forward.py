"""The forward of a patched model, which hands its arguments over to the layers as `Tokens`."""

from __future__ import annotations

import functools
import inspect
import pickle
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from model_runs import BATCH, LENGTH, LOGITS, MASKS, batch, real
from ntk_alibi.integrations.arguments import CACHE
from table_families import HEADS, model_of

FAMILIES = ("bloom", "mpt", "falcon", "t5, encoder", "mpnet", "jina")
DECODERS = FAMILIES[:3]
families = pytest.mark.parametrize("family", FAMILIES)
ids = batch()
LAYERS = ("BloomAttention", "MptAttention", "FalconAttention", "T5Attention", "MPNetSelfAttention")
LAYERS += ("JinaBertSelfAttention",)


def first(output: Any) -> torch.Tensor:
    found: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return found


def run(model: Any, *args: Any, **given: Any) -> torch.Tensor:
    with torch.no_grad():
        return first(model(*args, **given))


def with_layers(model: Any) -> Any:
    """Return the module that holds the layers."""
    base = model.base_model if hasattr(model, "base_model") else model
    return base.encoder if type(base).__name__ == "T5EncoderModel" else base


def probe(like: torch.Tensor) -> torch.Tensor:
    """Return fixed random values: sums of normalised states have no gradient."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(3))


@families
def test_its_signature_stays(family: str) -> None:
    """Trainer and generate() ask for the names of arguments."""
    model = model_of(family)
    own = [*inspect.signature(model.forward).parameters.values()]
    with na.patch(model):
        found = inspect.signature(model.forward).parameters.values()
        assert [(x.name, x.kind, x.default) for x in found] == [
            (x.name, x.kind, x.default) for x in own
        ]


@families
@pytest.mark.parametrize("part", ["model", "layer"])
def test_a_forward_that_others_replaced_before_the_patch_is_refused(family: str, part: str) -> None:
    model = model_of(family)
    own = with_layers(model)
    if part == "layer":
        own = next(x for x in own.modules() if type(x).__name__ in LAYERS)
    expected, classes = run(model, ids), [type(x) for x in model.modules()]
    own.forward = functools.partial(own.forward)
    with pytest.raises(ValueError, match=r"^model must be patched before others replace a forward"):
        na.patch(model)
    assert na.patched(model) == []
    assert [type(x) for x in model.modules()] == classes
    assert torch.equal(run(model, ids), expected)


@families
def test_a_forward_that_others_wrap_after_the_patch_stays(family: str) -> None:
    model, called = model_of(family), []
    own = with_layers(model)
    expected = run(model, ids)
    na.patch(model)
    patched = own.forward

    @functools.wraps(patched)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        called.append(len(args))
        return patched(*args, **kwargs)

    own.forward = wrapped
    torch.testing.assert_close(run(model, ids), expected, **LOGITS)
    na.patch(model, attention="eager")
    assert "eager" in repr(na.patched(model))
    torch.testing.assert_close(run(model, ids), expected, **LOGITS)
    na.unpatch(model)
    assert own.forward is wrapped
    assert torch.equal(run(model, ids), expected)
    assert len(called) == 3


@families
def test_a_call_that_raises_leaves_nothing(family: str) -> None:
    model = model_of(family)
    layer = next(x for x in reversed([*model.modules()]) if type(x) is torch.nn.Linear)
    with na.patch(model):
        expected = run(model, ids)

        def fail(*_: Any) -> None:
            raise ZeroDivisionError

        hook = layer.register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            run(model, ids)
        hook.remove()
        assert torch.equal(run(model, ids), expected)


def test_a_model_inside_the_pass_of_another() -> None:
    """A hook of one patched model runs another, as distillation does."""
    outer, inner = model_of("bloom"), model_of("mpt")
    found: list[torch.Tensor] = []
    na.patch(outer, "ntk:4")
    na.patch(inner, "ntk:2")
    expected = run(outer, ids), run(inner, ids)
    outer.transformer.h[0].register_forward_hook(lambda *_: found.append(run(inner, ids)))
    assert torch.equal(run(outer, ids), expected[0])
    assert torch.equal(found[0], expected[1])


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("form", ["fused", "eager", "traceable"])
def test_positions_of_one_text_a_row_are_taken(family: str, form: Any) -> None:
    """As generate() makes them of left padding, or as a caller counts columns."""
    model, mask = model_of(family), MASKS["left"]
    assert mask is not None
    counted = mask.cumsum(dim=-1) - 1
    with na.patch(model, attention=form):
        expected = run(model, ids, attention_mask=mask, use_cache=False)
        for positions in (
            counted.masked_fill(mask == 0, 1),
            counted.clamp(min=0),
            torch.arange(LENGTH)[None],
            torch.arange(LENGTH).expand(BATCH, -1) + 7,
        ):
            given = {"attention_mask": mask, "position_ids": positions, "use_cache": False}
            assert torch.equal(run(model, ids, **given)[real(mask)], expected[real(mask)])


@families
def test_a_pickled_forward_is_that_of_the_copy(family: str) -> None:
    model = model_of(family)
    with na.patch(model):
        clone = pickle.loads(pickle.dumps(model))
        expected = run(model, ids)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert torch.equal(run(clone, ids), expected)
    assert torch.equal(run(clone.forward, ids), expected)


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
@pytest.mark.parametrize("attention", ["fused", "eager"])
@pytest.mark.parametrize("growing", [False, True])
def test_a_trained_prefix_of_a_frozen_model_gets_its_gradient(
    name: str, attention: Any, growing: bool
) -> None:
    """As in prefix tuning: no weight is recorded, but the keys of the cache are."""
    model = model_of(name).base_model.requires_grad_(False)
    channels, heads = 16, 1 if name == "falcon" else HEADS
    torch.manual_seed(1)
    prefix = [torch.randn(2, BATCH, heads, 5, channels).requires_grad_() for _ in range(2)]

    def gradients() -> list[torch.Tensor]:
        cache = na.GrowingCache() if growing else transformers.DynamicCache()
        for layer, (keys, values) in enumerate(prefix):
            cache.update(keys, values, layer)
        mask = torch.ones(BATCH, 5 + LENGTH)
        output = first(model(ids, attention_mask=mask, **{CACHE: cache}))
        return list(torch.autograd.grad((output * probe(output)).sum(), prefix))

    stock = gradients()
    with na.patch(model, attention=attention):
        ours = gradients()
    for mine, theirs in zip(ours, stock, strict=True):
        assert theirs.abs().max() > 1e-2
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-3)
