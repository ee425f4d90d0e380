"""Patched models on several ranks: logits, losses, gradients and generated tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import distributed

import ntk_alibi as na
from ntk_alibi.integrations.cache_argument import CACHE
from ntk_alibi.models.loading import nano_bloom_path
from processes import run
from shared_texts import assert_small, differences

SCALINGS: dict[str, Any] = {
    "plain": None,
    "dynamic": na.DynamicNTK(2.0, per="query"),
    "of the text": na.DynamicNTK(2.0),
    "knee": na.Knee(100, 8.0),
}


def nano_bloom() -> Any:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(nano_bloom_path()).eval()


def batch() -> dict[str, torch.Tensor]:
    """Return a text and a shorter one with padding before it."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 1300, (2, 601), generator=rng)
    mask = torch.ones_like(ids)
    mask[1, :77] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask > 0, -100)}


def passes(rank: int, size: int) -> dict[str, list[float]]:
    """Return errors of logits, of the mean loss, and of averaged gradients, by scaling."""
    group = distributed.group.WORLD
    return {
        name: differences(nano_bloom(), nano_bloom(), batch(), group, scaling=scaling)
        for name, scaling in SCALINGS.items()
    }


def generation(rank: int, size: int) -> dict[str, bool]:
    """Return whether generated tokens are those of one process, by the kind of generation."""
    group, model, ids = distributed.group.WORLD, nano_bloom(), batch()["input_ids"]
    mask, scaling, found = batch()["attention_mask"], SCALINGS["dynamic"], {}
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {"inputs": ids[:1, :500], "max_new_tokens": 8},
        "padded beams": {
            "inputs": ids[:, :400], "attention_mask": mask[:, :400], "max_new_tokens": 5,
            "num_beams": 3,
        },
        "sampled, short prompt": {"inputs": ids[:1, :9], "max_new_tokens": 6, "do_sample": True},
    }  # fmt: skip
    for name, options in kinds.items():
        options = {"do_sample": False, **options}
        torch.manual_seed(3)
        with na.patch(model, scaling):
            expected = model.generate(**options)
        torch.manual_seed(3)
        with na.patch(model, scaling, group=group):
            cache = na.ShardedCache(group)
            result = model.generate(**options, **{CACHE: cache})
        found[name] = torch.equal(result, expected)
        assert cache.get_seq_length() == result.shape[1] - 1
    return found


def spread(rank: int, size: int) -> list[Any]:
    """Return how many keys this rank holds, before and after a crop, and what follows the crop."""
    group, model, ids = distributed.group.WORLD, nano_bloom(), batch()["input_ids"][:1]
    with na.patch(model, na.Knee(100, 8.0), group=group), torch.inference_mode():
        cache = na.ShardedCache(group)
        model(ids[:, :300], **{CACHE: cache})
        held = len(cache.columns)
        again = model(ids[:, 300:301], **{CACHE: cache}).logits
        cache.crop(300)
        cropped = len(cache.columns)
        twice = model(ids[:, 300:301], **{CACHE: cache}).logits
    with na.patch(model, na.Knee(100, 8.0)), torch.inference_mode():
        expected = model(ids[:, :301]).logits[:, -1:]
    error = float((again - expected).abs().max())
    return [held, cropped, bool((again == twice).all()), error]


def own_loss(rank: int, size: int) -> None:
    """Assert that a loss function of the user is put aside for the group's, and put back."""
    group, model, ids = distributed.group.WORLD, nano_bloom(), batch()["input_ids"][:1, :128]
    loss = model.loss_function
    model.loss_function = own = lambda *_, **__: torch.tensor(7.0)
    with na.patch(model):
        assert model(ids, labels=ids).loss == 7.0
        with na.patch(model, group=group):
            assert model.loss_function is not own
    assert model.loss_function is own
    model.loss_function = loss
    # the patch is gone: labels are shifted by transformers again
    expected = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)


def everything(rank: int, size: int) -> dict[str, Any]:
    own_loss(rank, size)
    work = passes, generation, spread
    return {function.__name__: function(rank, size) for function in work}


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return run(2, everything, 2)


def test_logits_loss_and_gradients_are_those_of_one_process(results: list[dict[str, Any]]) -> None:
    for found in results:
        for name, errors in found["passes"].items():
            assert_small(errors, name)


def test_generated_tokens_are_those_of_one_process(results: list[dict[str, Any]]) -> None:
    for found in results:
        assert all(found["generation"].values()), found["generation"]


def test_keys_are_spread_and_can_be_taken_back(results: list[dict[str, Any]]) -> None:
    held, cropped, same, error = zip(*(found["spread"] for found in results), strict=True)
    assert held == cropped == (150, 150)
    assert all(same)
    assert max(error) < 1e-4
