"""Generation and training of small models, for the tests of patched models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from padded_batches import VOCABULARY


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
