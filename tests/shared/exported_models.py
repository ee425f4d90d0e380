"""Shared parts of the tests of exported models: a module, and other inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from padded_batches import VOCABULARY


class Logits(nn.Module):
    """The logits of a model, without a cache."""

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


#: Tokens of another batch and length than in `padded_batches`, and their padding mask.
LONG = torch.randint(0, VOCABULARY, (2, 77), generator=torch.Generator().manual_seed(1))
LONG_MASK = (torch.arange(77) >= torch.tensor([[20], [0]])).long()
