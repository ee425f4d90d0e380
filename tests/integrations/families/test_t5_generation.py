"""Generation by patched relatives of T5, with every cache."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

import ntk_alibi as na
from model_runs import BATCH, LENGTH, LOGITS, MASKS, batch
from ntk_alibi.integrations.arguments import CACHE
from small_models import make_relative


@pytest.mark.parametrize(
    "options",
    [{CACHE: "growing"}, {"cache_implementation": "static", "num_beams": 3},
     {"assistant_model": "itself"}],
    ids=str,
)  # fmt: skip
def test_generation_gives_the_same_tokens(options: dict[str, Any]) -> None:
    model, mask = make_relative("T5"), MASKS["left"]
    if options.get("assistant_model"):
        options, mask = {"assistant_model": copy.deepcopy(model)}, None
    rows = BATCH if mask is not None else 1

    def generate(**more: Any) -> Any:
        return model.generate(
            batch()[:rows], attention_mask=mask, max_new_tokens=8, do_sample=False,
            output_scores=True, return_dict_in_generate=True, **more,
        )  # fmt: skip

    growing = CACHE in options
    stock = generate(**{} if growing else options)
    if growing:
        options = {CACHE: EncoderDecoderCache(na.GrowingCache(), na.GrowingCache())}
    with na.patch(model):
        ours = generate(**options)
    assert torch.equal(ours.sequences, stock.sequences)
    for mine, theirs in zip(ours.scores, stock.scores, strict=True):
        torch.testing.assert_close(mine, theirs, **LOGITS)


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
