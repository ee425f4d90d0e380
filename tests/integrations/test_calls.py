"""How many Python functions of the package a call runs: what each layer and token pays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import transformers

import ntk_alibi as na

PACKAGE = str(Path(na.__file__).parent)


def calls(function: Callable[[], Any]) -> int:
    """Return how often functions of the package are called, comprehensions included."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def two_layers() -> Any:
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    return transformers.BloomForCausalLM(config).eval()


@torch.no_grad()
def test_a_forward_of_two_layers() -> None:
    model, ids = two_layers(), torch.arange(12)[None]
    na.patch(model)
    model(ids)
    assert calls(lambda: model(ids)) <= 90
    padded = torch.ones_like(ids)
    padded[:, :3] = 0
    assert calls(lambda: model(ids, attention_mask=padded)) <= 220


def test_a_patch_of_two_layers() -> None:
    model = two_layers()
    na.patch(model).undo()
    assert calls(lambda: na.patch(model)) <= 200


def test_warm_attention() -> None:
    query, bias = torch.randn(1, 4, 12, 8), na.ALiBi(4)
    na.attention(query, query, query, bias)
    assert calls(lambda: na.attention(query, query, query, bias)) <= 21
