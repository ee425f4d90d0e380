"""Abridged JinaBERTs and MosaicBERTs of remote code, with inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from remote_models.jina_bert import small_jina_bert
from remote_models.mosaic_bert import small_mosaic_bert

HEADS, ROWS, TOKENS = 6, 3, 29

MAKERS: dict[str, Callable[..., Any]] = {
    "jina": small_jina_bert,
    "jina, buffer": lambda **config: small_jina_bert(alibi_buffer=True, **config),
    "jina, norms": lambda **config: small_jina_bert(qk_norm=True, **config),
    "jina, sdpa": lambda **config: small_jina_bert(attn_implementation="torch", **config),
    "mosaic": small_mosaic_bert,
}
kinds = pytest.mark.parametrize("name", ["jina, buffer", "mosaic"])

#: Float32 sums of 100 terms through three layers with norms, at outputs of about 1.
CLOSE = {"atol": 2e-5, "rtol": 0.0}


def make(name: str, **config: Any) -> Any:
    torch.manual_seed(7)
    return MAKERS[name](**config)


def ids(rows: int = ROWS, tokens: int = TOKENS) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).integers(1, 97, size=(rows, tokens)))


def run(model: Any, given: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model(given, attention_mask=mask)[0]
    return output if mask is None else output[mask != 0]


def layers_of(model: Any) -> list[Any]:
    return [layer.attention.self for layer in model.encoder.layer]
