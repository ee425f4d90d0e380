"""A batch of tokens and its kinds of padding, for the tests of patched models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

BATCH, LENGTH, VOCABULARY = 3, 40, 64


def _masks() -> dict[str, torch.Tensor | None]:
    ones = torch.ones((BATCH, LENGTH), dtype=torch.long)
    left, right, holes = ones.clone(), ones.clone(), ones.clone()
    left[0, :11] = left[2, :3] = 0
    right[0, 29:] = right[2, 37:] = 0
    holes[0, [3, 4, 17]] = holes[1, [0, 39]] = holes[2, 5:25] = 0
    return {"none": None, "ones": ones, "left": left, "right": right, "holes": holes}


MASKS = _masks()
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def batch() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def run(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, **kw: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(ids, attention_mask=mask, **kw).logits
    return logits


def real(mask: torch.Tensor | None) -> torch.Tensor:
    return torch.ones((BATCH, LENGTH), dtype=torch.bool) if mask is None else mask.bool()
