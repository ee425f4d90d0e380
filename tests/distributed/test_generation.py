"""Generation with a `ShardedCache` on two ranks: transformers' ways, and long second turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import distributed

import ntk_alibi as na
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.models.loading import nano_bloom_path
from processes import run

SAMPLED = {"do_sample": True, "top_k": 20}
RETURNED = {"return_dict_in_generate": True}

#: Two texts, the second of which begins with padding.
PADDED = {
    "inputs": torch.randint(4, 1300, (2, 280), generator=torch.Generator().manual_seed(2)),
    "attention_mask": (torch.arange(280) >= torch.tensor([[0], [77]])).long(),
}

#: Ways to generate that crop the cache, ask for other logits of the prompt than the last, or have
#: a prompt that is not cut.
FEW: dict[str, dict[str, Any]] = {
    "padded beams": {**PADDED, "num_beams": 3},
    "short prompt": {"inputs": PADDED["inputs"][:1, :9], **SAMPLED},
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
    "assisted": {"assistant_model": True},
    "returned beams": {"num_beams": 4, "num_return_sequences": 2},
}
MANY: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "beams, early stopping": {"num_beams": 3, "early_stopping": True, "length_penalty": 0.5},
    "sampled": SAMPLED,
    "sampled beams": {**SAMPLED, "num_beams": 2},
    "sampled, returned": {**SAMPLED, "num_return_sequences": 2},
    "sampled, typical": {"do_sample": True, "typical_p": 0.9},
    "sampled, nucleus": {"do_sample": True, "top_p": 0.8, "temperature": 1.3},
    "sampled, assisted": {**SAMPLED, "assistant_model": True},
    "chunks": {"prefill_chunk_size": 50},
    "long chunks": {"prefill_chunk_size": 130},
    "repetition penalty": {"repetition_penalty": 1.3},
    "no repeated pairs": {"no_repeat_ngram_size": 2},
    "sequence bias": {"sequence_bias": [[[7], -2.0]]},
    "scores and logits": {**RETURNED, "output_scores": True, "output_logits": True},
}


def nano_bloom() -> Any:
    return transformers.BloomForCausalLM.from_pretrained(nano_bloom_path()).eval()


def prompt() -> torch.Tensor:
    """Return a text that repeats itself, so that prompt lookup finds some."""
    return torch.randint(4, 1300, (1, 40), generator=torch.Generator().manual_seed(0)).repeat(1, 7)


def ways(rank: int, kinds: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """Return whether generated tokens are the tokens of one process, by the way of generation."""
    group, model, found = distributed.group.WORLD, nano_bloom(), {}
    for name, options in kinds.items():
        options = {"inputs": prompt(), "do_sample": False, "max_new_tokens": 8, **options}
        if "assistant_model" in options:
            options["assistant_model"] = nano_bloom()
        results = []
        for patch in ({}, {"group": group}):
            cache = {CACHE: na.ShardedCache(group)} if patch else {}
            torch.manual_seed(3)
            with na.patch(model, "ntk:4", **patch):
                result = model.generate(**options, **cache)
            results.append(result if isinstance(result, torch.Tensor) else result.sequences)
        found[name] = torch.equal(*results)
    return found


def turns(rank: int) -> tuple[list[int], list[float]]:
    """Return how many keys this rank has after each turn, and errors of the turns' logits."""
    group, model, held, errors = distributed.group.WORLD, nano_bloom(), [], []
    ids = torch.randint(4, 1300, (2, 700), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :30] = 0
    scaling = na.DynamicNTK(2.0, per="query")
    with na.patch(model, scaling), torch.inference_mode():
        expected = model(ids, attention_mask=mask).logits
    with na.patch(model, scaling, group=group), torch.inference_mode():
        cache = na.ShardedCache(group)

        def turn(begin: int, end: int, columns: Any, **options: Any) -> None:
            part = {"input_ids": ids[:, begin:end], "attention_mask": mask[:, :end]}
            logits = model(**part, **{CACHE: cache}, **options).logits
            difference = (logits - expected[:, begin:end][:, columns]).abs()
            errors.append(float(difference.max()))
            held.append(len(cache.columns))

        turn(0, 200, slice(-5, None), logits_to_keep=5)
        turn(200, 210, slice(None))  # together, on one rank
        turn(210, 600, slice(None))  # spread over the ranks
        cache.crop(0)
        held.append(len(cache.columns))
        cache.crop(-100)
        cache.crop(400)  # older versions of transformers give the number of tokens to keep
        held.append(len(cache.columns))
        turn(400, 700, slice(-1, None), logits_to_keep=1)
        cache.reset()
        columns = torch.tensor([699, 3, 400])
        turn(0, 700, columns, logits_to_keep=columns)
    return held, errors


def guidance(rank: int) -> str:
    group, model = distributed.group.WORLD, nano_bloom()
    options = {"guidance_scale": 1.5, "max_new_tokens": 2}
    cache = na.ShardedCache(group)
    with na.patch(model, group=group), pytest.raises(ValueError, match="use_cache") as caught:
        model.generate(prompt(), **{CACHE: cache}, **options)
    return str(caught.value)


def test_ways_that_crop_or_keep_logits() -> None:
    for found in run(2, ways, FEW):
        assert all(found.values()), found


@pytest.mark.slow
def test_ways_to_generate() -> None:
    for found in run(2, ways, MANY):
        assert all(found.values()), found


def test_long_turns_are_spread_and_can_be_taken_back() -> None:
    held, errors = zip(*run(2, turns), strict=True)
    for of_ranks, total in zip(
        zip(*held, strict=True), (200, 210, 600, 600, 400, 700, 700), strict=True
    ):
        assert sum(of_ranks) == total
    assert held[0][2] == held[1][2] == 300
    assert held[0][5] == held[1][5] == 350
    assert max(map(max, errors)) < 1e-4


def test_guidance_names_its_own_cache() -> None:
    for message in run(2, guidance):
        assert f"use_cache must be None or False without {CACHE}" in message
        assert "guidance_scale" in message
