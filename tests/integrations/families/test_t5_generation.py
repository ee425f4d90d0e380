"""Generation by patched relatives of T5, with every cache."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

import ntk_alibi as na
from model_runs import LENGTH, MASKS, batch
from ntk_alibi.integrations.arguments import CACHE
from small_models import make_relative


def test_generation_with_an_assistant_gives_the_same_tokens() -> None:
    model = make_relative("T5")
    given = {"assistant_model": copy.deepcopy(model), "max_new_tokens": 8, "do_sample": False}
    stock = model.generate(batch()[:1], **given)
    with na.patch(model):
        assert torch.equal(model.generate(batch()[:1], **given), stock)


def test_a_window_cache_holds_what_a_decoder_sees() -> None:
    model = make_relative("T5")
    given = {"max_new_tokens": 9, "do_sample": False, "attention_mask": MASKS["left"]}
    with na.patch(model, window=5):
        tokens = model.generate(batch(), **given)
        cache = EncoderDecoderCache(na.WindowCache(5), DynamicCache())
        assert torch.equal(model.generate(batch(), **{CACHE: cache}, **given), tokens)
        assert cache.self_attention_cache.layers[0].keys.shape[2] <= 5
        assert cache.cross_attention_cache.layers[0].keys.shape[2] == LENGTH
    message = rf"{CACHE} must hold what the patch shows, got WindowCache\(5, 0\)"
    cache = EncoderDecoderCache(na.WindowCache(5), DynamicCache())
    with na.patch(model), pytest.raises(ValueError, match=message):
        model.generate(batch(), **{CACHE: cache}, **given)
