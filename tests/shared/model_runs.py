"""Generation and training of small models, for the tests of patched models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import ntk_alibi as na
from padded_batches import MASKS, VOCABULARY

#: Ways to generate that must not change the tokens.
GENERATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"cache_implementation": "static"},
    {"use_cache": False},
    {"num_beams": 3},
    {"prefill_chunk_size": 16},
)


def generations(*more: dict[str, Any]) -> pytest.MarkDecorator:
    """Give each family each way to generate, half of them with padding.

    Any way meets both, and so does any family. Falcon's other layouts of heads differ in how the
    projected queries and keys are split only, so two ways are enough.
    """
    ways, masks = (*GENERATIONS, *more), {"unpadded": None, "left": MASKS["left"]}
    families = ("bloom", "mpt", "falcon")
    cases = [(name, way, i + j) for i, name in enumerate(families) for j, way in enumerate(ways)]
    for name in ("falcon, heads of keys", "falcon, new decoder"):
        cases += [(name, ways[0], 1), (name, ways[1], 0)]
    kinds = list(masks)
    return pytest.mark.parametrize(
        ("name", "options", "mask"),
        [
            pytest.param(name, way, masks[kinds[i % 2]], id=f"{name}-{way}-{kinds[i % 2]}")
            for name, way, i in cases
        ],
    )


def generate(model: Any, ids: torch.Tensor, mask: Any, **options: Any) -> torch.Tensor:
    mask = torch.ones_like(ids) if mask is None else mask
    tokens = {"pad_token_id": 0, "eos_token_id": VOCABULARY}  # some versions need one
    options = {"max_new_tokens": 6, "do_sample": False, **tokens, **options}
    generated: torch.Tensor = model.generate(ids, attention_mask=mask, **options)
    return generated


def enable_checkpointing(model: Any, *options: Any) -> None:
    """Enable gradient checkpointing, whose method was renamed in transformers 5.23."""
    new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    getattr(model, new if hasattr(model, new) else old)(*options)


def gradients(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor | None,
    labels: torch.Tensor,
    *,
    checkpointing: bool = False,
    **patch: Any,
) -> list[torch.Tensor]:
    """Return the gradients of a model's parameters in training, with a patch of these arguments."""
    model.train()
    if checkpointing:
        enable_checkpointing(model)
    with na.patch(model, **patch):
        model(ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def assert_gradients_close(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def state_of(model: Any) -> list[Any]:
    """Return what a patch could leave behind in the modules of a model."""
    return [
        (part, sorted(vars(module)), sorted(module._modules), dict(module._forward_pre_hooks))
        for part, module in model.named_modules()
    ]


def drop_weights(model: Any) -> None:
    """Let the attention layers drop half of their weights in training."""
    for layer in model.modules():
        if hasattr(layer, "attn_dropout_p"):  # MPT; its configuration takes 0 and 1 only
            layer.attn_dropout_p = 0.5
        elif hasattr(layer, "attention_dropout"):
            layer.attention_dropout.p = 0.5
