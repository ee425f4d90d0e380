"""What each layer, token and patch pays: Python functions of the package, and collected garbage."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache

import ntk_alibi as na
from ntk_alibi.integrations.arguments import CACHE
from table_families import model_of

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
    assert calls(lambda: model(ids)) <= 92
    padded = torch.ones_like(ids)
    padded[:, :3] = 0
    assert calls(lambda: model(ids, attention_mask=padded)) <= 220


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bloom", "t5"])
def test_a_token_after_a_prompt(kind: str) -> None:
    """One query has a short way from each layer to the core."""

    def calls_of_a_token(layers: int) -> int:
        small = {"vocab_size": 64, "num_layers": layers}
        if kind == "bloom":
            config: Any = transformers.BloomConfig(**small, hidden_size=32, n_head=4)
            model: Any = transformers.BloomForCausalLM(config).eval()
            cache: Any = DynamicCache()
            given: dict[str, Any] = {"use_cache": True, CACHE: cache}
        else:
            config = transformers.T5Config(**small, d_model=32, d_kv=8, d_ff=32, num_heads=4)
            model = transformers.T5ForConditionalGeneration(config).eval().decoder
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
            states = torch.randn(1, 7, 32)
            given = {"use_cache": True, CACHE: cache, "encoder_hidden_states": states}
        na.patch(model)
        for ids in (torch.arange(12)[None], *[torch.tensor([[5]])] * 2):
            model(ids, **given)
        return calls(lambda: model(torch.tensor([[6]]), **given))

    few, more = map(calls_of_a_token, (2, 4))
    attentions = 2 if kind == "bloom" else 4
    assert few <= (95 if kind == "bloom" else 180)
    assert (more - few) / attentions <= 6 + 7  # six are of the layer itself


def test_a_patch_of_two_layers() -> None:
    model = two_layers()
    na.patch(model).undo()
    gc.collect()  # models of other tests, whose patches would be asked, too
    assert calls(lambda: na.patch(model)) <= 240


def test_a_patch_of_two_stacks_does_not_collect_garbage() -> None:
    """To collect takes the time of all objects of the process, seconds at times."""
    model, collected = model_of("t5"), []

    def note(phase: str, _: dict[str, int]) -> None:
        collected.append(phase)

    gc.disable()  # what collects now was asked to
    gc.callbacks.append(note)
    try:
        with na.patch(model, "original"):
            pass
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    assert not collected


def test_warm_attention() -> None:
    query, bias = torch.randn(1, 4, 12, 8), na.ALiBi(4)
    na.attention(query, query, query, bias)
    assert calls(lambda: na.attention(query, query, query, bias)) <= 21
