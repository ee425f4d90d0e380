"""Steps of a T5's decoder: what changes between two of them counts in the second."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

import ntk_alibi as na
from model_runs import LOGITS
from ntk_alibi.integrations.arguments import CACHE
from small_models import make_relative

#: The state between two steps: the model, the encoder's states and padding, and the cache.
State = dict[str, Any]


def nothing(_: State) -> None:
    """Change nothing."""


def padding_in_place(state: State) -> None:
    state["attention_mask"][:, -2:] = 0


def other_padding(state: State) -> None:
    state["attention_mask"] = state["attention_mask"].roll(3, dims=1)


def no_padding(state: State) -> None:
    state["attention_mask"] = None


def table_in_place(state: State) -> None:
    layer = state["model"].decoder.block[0].layer[0].SelfAttention
    layer.relative_attention_bias.weight.data.mul_(-2.0)


def fewer_rows(state: State) -> None:
    state["cache"].batch_select_indices(torch.tensor([1]))
    for name in ("states", "attention_mask"):
        state[name] = state[name][1:]


def other_order(state: State) -> None:
    state["cache"].reorder_cache(torch.tensor([1, 0]))
    for name in ("states", "attention_mask"):
        state[name] = state[name].flip(0)


def cropped(state: State) -> None:
    state["cache"].crop(-2)


CHANGES = [
    nothing, padding_in_place, other_padding, no_padding, table_in_place, fewer_rows, other_order,
    cropped,
]  # fmt: skip


@torch.no_grad()
def steps(model: Any, change: Callable[[State], None]) -> list[torch.Tensor]:
    """Return the logits of a prompt and of two tokens after it, one by one, with a change."""
    mask = torch.tensor([[1] * 9, [0, 0] + [1] * 7])
    generator = torch.Generator().manual_seed(2)
    state: State = {
        "model": model,
        "states": torch.randn(2, 9, 32, generator=generator),
        "attention_mask": mask,
        "cache": EncoderDecoderCache(DynamicCache(), DynamicCache()),
    }
    logits = []
    for ids in (torch.arange(5, 15).reshape(2, 5), torch.tensor([[7], [8]]), torch.tensor([[9]])):
        if len(logits) == 1:
            change(state)
        output = model(
            decoder_input_ids=ids[: len(state["states"])].expand(len(state["states"]), -1),
            encoder_outputs=(state["states"],),
            attention_mask=state["attention_mask"],
            use_cache=True,
            **{CACHE: state["cache"]},
        )
        logits.append(output.logits)
    return logits


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_two_steps(change: Callable[[State], None]) -> None:
    torch.manual_seed(1)
    stock = make_relative("T5").eval()
    ours = copy.deepcopy(stock)
    na.patch(ours)
    expected, got = (steps(model, change) for model in (stock, ours))
    for theirs, mine in zip(expected, got, strict=True):
        torch.testing.assert_close(mine, theirs, **LOGITS)


def test_a_patch_between_two_steps() -> None:
    torch.manual_seed(1)
    model = make_relative("T5").eval()
    na.patch(model)
    plain = steps(model, nothing)

    def patch_again(state: State) -> None:
        na.patch(state["model"], window=2)

    changed = steps(model, patch_again)
    assert torch.equal(changed[0], plain[0])
    assert (changed[1] - plain[1]).abs().max() > 1e-3
    assert torch.equal(steps(model, nothing)[1], steps(model, nothing)[1])
