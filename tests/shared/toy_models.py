"""Small models in plain torch, whose families are written as a stranger would write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

import ntk_alibi as na
from ntk_alibi.integrations import Family

HEADS, CHANNELS, VOCABULARY = 6, 48, 64


class ToyAttention(nn.Module):
    """Attention with a dense bias, made in each call."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.probability = causal, 0.25
        self.project = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.output = nn.Linear(CHANNELS, CHANNELS)

    def heads(self, hidden: torch.Tensor) -> Any:
        return self.project(hidden).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.heads(hidden)
        at = torch.arange(hidden.shape[1])
        distance = (at[:, None] - at).abs()
        bias = -torch.from_numpy(na.alibi_slopes(HEADS))[:, None, None] * distance
        if self.causal:
            bias = bias.masked_fill(at > at[:, None], -torch.inf)
        bias = bias.masked_fill(attention_mask[:, None, None] == 0, torch.finfo(bias.dtype).min)
        weights = (query @ key.mT * query.shape[-1] ** -0.5 + bias).softmax(dim=-1)
        weights = nn.functional.dropout(weights, self.probability, self.training)
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class ToyModel(nn.Module):
    """Embeddings and attention layers."""

    def __init__(self, causal: bool = False, layers: int = 2) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_attention_heads=HEADS, hidden_size=CHANNELS)
        self.embed = nn.Embedding(VOCABULARY, CHANNELS)
        self.attentions = nn.ModuleList(ToyAttention(causal) for _ in range(layers))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = self.embed(input_ids)
        for attention in self.attentions:
            hidden = hidden + attention(hidden, mask)
        return hidden


def toy_model(causal: bool = False) -> ToyModel:
    torch.manual_seed(3)
    return ToyModel(causal).eval()


def matches(module: nn.Module) -> bool:
    return type(module).__name__ == "ToyModel" and hasattr(module, "attentions")


def layers(model: Any) -> list[nn.Module]:
    return list(model.attentions)


def forward(attend: Any, layer: Any, hidden: torch.Tensor, attention_mask: Any) -> torch.Tensor:
    query, key, value = layer.heads(hidden)
    dropout = layer.probability if layer.training else 0.0
    output, _ = attend(query, key, value, mask=attention_mask, dropout=dropout)
    mixed: torch.Tensor = layer.output(output.transpose(1, 2).flatten(2))
    return mixed


def slopes(_: Any) -> int:
    return HEADS


def toy_family(causal: bool = False, **fields: Any) -> Family:
    required = {"matches": matches, "layers": layers, "forward": forward, "slopes": slopes}
    return Family(**{"name": "Toy", **required, "causal": causal, **fields})


def toy_batch(rows: int = 2, tokens: int = 37) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random ids, and a mask with padding behind in one row and before in the next."""
    values = np.random.default_rng(5).integers(VOCABULARY, size=(rows, tokens))
    mask = torch.ones(rows, tokens, dtype=torch.long)
    mask[0, -tokens // 3 :] = 0
    if rows > 1:
        mask[1, : tokens // 4] = 0
    return torch.from_numpy(values), mask
