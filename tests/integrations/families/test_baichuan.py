"""Baichuan-13B, patched: remote code with tuples as caches and a mask of all pairs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version

import ntk_alibi as na
from model_runs import (
    BATCH,
    LENGTH,
    LOGITS,
    MASKS,
    assert_gradients_close,
    batch,
    generate,
    real,
    run,
)
from remote_models.baichuan import BaichuanForCausalLM, small_baichuan


@pytest.fixture
def model() -> BaichuanForCausalLM:
    torch.manual_seed(0)
    return small_baichuan(vocab_size=64)


@pytest.fixture
def ids() -> torch.Tensor:
    return batch()


def _pairs(model: torch.nn.Module) -> list[str]:
    """Return the names of tensors, parameters aside, with entries for pairs of tokens."""
    kept = {**dict(model.named_buffers()), "alibi_mask": model.model.alibi_mask}
    return [name for name, x in kept.items() if x is not None and x.ndim >= 3]


def test_a_dynamic_scaling_takes_model_max_length(model: Any, ids: torch.Tensor) -> None:
    with na.patch(model, na.DynamicNTK(1.0)) as handle:
        assert handle.scaling == na.DynamicNTK(1.0, train_length=64)
        short = run(model, ids)
        long = run(model, ids.repeat(1, 4)[:, :100])
    torch.testing.assert_close(short, run(model, ids), **LOGITS)
    assert (long - run(model, ids.repeat(1, 4)[:, :100])).abs().max() > 1e-2


def test_steps_on_a_cache_are_the_whole_text(model: Any, ids: torch.Tensor) -> None:
    mask = MASKS["left"]
    assert mask is not None
    with na.patch(model, na.NTK(2.0)), torch.no_grad():
        whole, cache, parts = run(model, ids, mask), None, []
        for begin, end in ((0, 20), (20, 37), (37, 38), (38, LENGTH)):  # own code takes one token
            made = model(
                ids[:, begin:end],
                attention_mask=mask[:, :end],
                past_key_values=cache,
                use_cache=True,
            )
            cache = made.past_key_values
            parts.append(made.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[real(mask)], whole[real(mask)], **LOGITS)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"use_cache": False}], ids=str)
def test_generate(model: Any, ids: torch.Tensor, options: dict[str, Any]) -> None:
    mask, version = MASKS["left"], Version(transformers.__version__)
    if version < Version("4.54") or version >= Version("5.24") or "use_cache" in options:
        stock = generate(model, ids, mask, **{**options, "use_cache": False})
        with na.patch(model):
            assert torch.equal(generate(model, ids, mask, **options), stock)
    else:
        with na.patch(model), pytest.raises(TypeError, match="past_key_values must be a tuple of"):
            generate(model, ids, mask, **options)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_with_other_padding_in_each_batch(
    model: Any, ids: torch.Tensor, checkpointing: bool
) -> None:
    """Its own code keeps the mask of a batch for the next one of the same length."""
    model.model.gradient_checkpointing = checkpointing
    model.train()
    stock = copy.deepcopy(model)
    with na.patch(model):
        for name in ("left", "right", "none"):
            kept = real(MASKS[name]) & real(MASKS[name]).roll(1, dims=1)  # rows that predict, too
            labels = torch.where(kept, ids, -100)
            for trained in (stock, model):
                trained.zero_grad()
                trained(ids, attention_mask=MASKS[name], labels=labels).loss.backward()
            assert_gradients_close(
                [x.grad for x in model.parameters()], [x.grad for x in stock.parameters()]
            )


def test_a_patched_model_holds_no_mask_of_all_pairs_and_undo_is_to_the_bit(
    model: Any, ids: torch.Tensor
) -> None:
    assert not _pairs(model)
    with na.patch(model):  # the comparison with its own code leaves nothing
        assert not _pairs(model)
        run(model, ids.repeat(1, 3))
        assert not _pairs(model)
    stock = run(model, ids)
    assert _pairs(model) == ["model.future_mask"]
    model.train()
    model(ids, labels=ids)
    model.eval()
    with na.patch(model), na.patch(model, na.NTK(2.0)):
        assert not _pairs(model)
    assert torch.equal(run(model, ids), stock)
    assert model.model.future_mask.shape == (6, 64, 64)
    assert "forward" not in vars(model.model)


def test_the_comparison_with_its_own_code_makes_no_mask_of_model_max_length(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, sizes = type(model.model)._mask_of, []

    def counted(self: Any, size: int) -> torch.Tensor:
        sizes.append(size)
        return own(self, size)

    monkeypatch.setattr(type(model.model), "_mask_of", counted)
    with na.patch(model):
        assert sizes
    assert max(sizes) < model.config.model_max_length


def test_attention_weights(model: Any, ids: torch.Tensor) -> None:
    layer, found = model.model.layers[1].self_attn, []
    hook = layer.register_forward_hook(lambda _, __, output: found.append(output[1]))
    for patched in (False, True):
        with na.patch(model) if patched else torch.no_grad():
            run(model, ids, output_attentions=True)
    hook.remove()
    torch.testing.assert_close(found[1], found[0], **LOGITS)


def test_bfloat16(model: Any, ids: torch.Tensor) -> None:
    model.bfloat16()
    with na.patch(model):
        patched = run(model, ids)
    wide = run(model.float(), ids)
    assert patched.dtype == torch.bfloat16
    assert (patched - wide).abs().mean() < 2.0**-7 * wide.abs().mean() * 4  # four roundings


def test_masks_of_its_own_code_that_are_no_padding_are_refused(
    model: Any, ids: torch.Tensor
) -> None:
    with na.patch(model):
        for mask in (torch.ones(BATCH, LENGTH, LENGTH), 2 * torch.ones_like(ids)):
            with pytest.raises(ValueError, match="attention_mask must be of 0 and 1"):
                run(model, ids, mask)
        run(model, ids, MASKS["left"])  # what was refused left nothing


def test_the_7b_model_of_the_same_name_is_refused(model: Any) -> None:
    """It has rotary positions, and makes no mask of all pairs."""
    model.model.__class__ = type("BaichuanModel", (transformers.PreTrainedModel,), {})
    with pytest.raises(ValueError, match="model must hold ALiBi attention of a known family"):
        na.patch(model)


def test_another_revision_is_refused_by_its_numbers(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = type(model.model)._mask_of
    monkeypatch.setattr(type(model.model), "_mask_of", lambda self, size: 1.1 * own(self, size))
    with pytest.raises(RuntimeError, match="the model's code is of another revision"):
        na.patch(model)
    assert na.patched(model) == []
    assert not _pairs(model)
