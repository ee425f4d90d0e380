"""What is run on small models: batches and their padding, generation, training, exports, caches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from small_models import VOCABULARY

BATCH, LENGTH = 3, 40

#: Float32 sums of a few hundred terms through two or three layers, at logits of about 1 (T5: 5).
LOGITS = {"atol": 2e-5, "rtol": 0.0}


def _masks() -> dict[str, torch.Tensor | None]:
    ones = torch.ones((BATCH, LENGTH), dtype=torch.long)
    left, right, holes = ones.clone(), ones.clone(), ones.clone()
    left[0, :11] = left[2, :3] = 0
    right[0, 29:] = right[2, 37:] = 0
    holes[0, [3, 4, 17]] = holes[1, [0, 39]] = holes[2, 5:25] = 0
    return {"none": None, "ones": ones, "left": left, "right": right, "holes": holes}


#: The batch's kinds of padding.
MASKS = _masks()

#: Tokens of another batch and length, and their padding mask.
LONG = torch.randint(0, VOCABULARY, (2, 77), generator=torch.Generator().manual_seed(1))
LONG_MASK = (torch.arange(77) >= torch.tensor([[20], [0]])).long()


def batch() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def run(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, **kw: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(ids, attention_mask=mask, **kw).logits
    return logits


def real(mask: torch.Tensor | None) -> torch.Tensor:
    return torch.ones((BATCH, LENGTH), dtype=torch.bool) if mask is None else mask.bool()


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


def drop_weights(layers: Iterable[Any]) -> None:
    """Let attention layers of any family drop half of their weights in training."""
    for layer in layers:
        for name in ("attn_dropout_p", "p_dropout", "attention_dropout", "dropout", "probability"):
            value = getattr(layer, name, None)
            if isinstance(value, nn.Dropout):
                value.p = 0.5
            elif isinstance(value, int | float):
                setattr(layer, name, 0.5)


class Logits(nn.Module):
    """The logits of a model without a cache, to be exported."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            input_ids, attention_mask=attention_mask, use_cache=False
        ).logits
        return logits


def keys_and_values(
    tokens: int, seed: int = 0, *, head_dim: int = 8, dtype: Any = torch.float32
) -> list[torch.Tensor]:
    """Return random keys and values of two rows and three heads."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, tokens, head_dim)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]


def change_rows(cache: Any, head_dim: int = 8) -> None:
    """Fill a cache, and reorder, repeat, select and crop its rows between updates."""
    cache.update(*keys_and_values(10, head_dim=head_dim), 0)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.update(*keys_and_values(2, 1, head_dim=head_dim), 0)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    cache.update(*keys_and_values(3, 2, head_dim=head_dim), 0)
    cache.crop(-4)
    cache.update(*keys_and_values(5, 3, head_dim=head_dim), 0)
