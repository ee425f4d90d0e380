"""What patched models refuse over ranks: all of them raise the same sentence.

Where only rank 1 does something wrong, no other rank may wait for it. After all sentences the group
works on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed

import ntk_alibi as na
from family_models import make_model
from ntk_alibi.integrations.cache_argument import CACHE
from ntk_alibi.torch import shard
from processes import run
from rank_refusals import assert_both_hear, heard

RANKS = 2


class Here:
    """One of two ranks: its part of a text, and passes of models over it."""

    def __init__(self, rank: int) -> None:
        self.rank, self.second, self.group = rank, rank == 1, distributed.group.WORLD
        self.alone = [distributed.new_group([i]) for i in range(RANKS)][rank]
        self.model = make_model("bloom")
        self.ids = torch.arange(1, 161)[None] % 50
        labelled = {"input_ids": self.ids, "labels": self.ids}
        self.part = shard(labelled, self.group)
        self.zigzag = shard(labelled, self.group, layout="zigzag")
        self.own = self.part["input_ids"]

    def run(
        self,
        input_ids: Any,
        patch: dict[str, Any] | None = None,
        model: Any = None,
        **given: Any,
    ) -> Any:
        """Return what a model computes that is patched with the group, or as `patch` says."""
        model = self.model if model is None else model
        with na.patch(model, **{"group": self.group, **(patch or {})}):
            return model(input_ids, **given)

    def generated(self) -> Any:
        with na.patch(self.model, group=self.group):
            return self.model.generate(self.ids, max_new_tokens=2)

    def cached(self, ids: Any, patch: dict[str, Any] | None = None, **given: Any) -> Any:
        with torch.no_grad():
            return self.run(ids, patch, **{CACHE: na.ShardedCache(self.group)}, **given)

    def continued(self, ids: Any, **given: Any) -> Any:
        """Continue a text of 100 tokens, which is in a cache."""
        cache = na.ShardedCache(self.group)
        with na.patch(self.model, group=self.group), torch.no_grad():
            self.model(self.ids[:, :100], **{CACHE: cache})
            return self.model(ids, **{CACHE: cache}, **given)

    def beyond_float32(self) -> Any:
        """Continue a text on keys that are too large on rank 1."""
        model, cache = make_model("bloom"), na.ShardedCache(self.group)
        with na.patch(model, group=self.group), torch.no_grad():
            for layer in model.modules():
                if hasattr(layer, "query_key_value"):
                    layer.query_key_value.weight.mul_(100.0)
            model(self.ids[:, :-1], **{CACHE: cache})
            if self.second:
                cache.held(0)[0].mul_(1e36)
            return model(self.ids, **{CACHE: cache})


#: The beginnings of the sentences that all ranks hear, and what is refused with them.
REFUSED: dict[str, Callable[[Here], Any]] = {
    "layout must be 'contiguous' without group, got 'zigzag'": lambda here: na.patch(
        here.model, layout="zigzag"
    ),
    "layout must be one of 'contiguous', 'zigzag', got 'striped'": lambda here: na.patch(
        here.model, group=here.group, layout="striped"
    ),
    "attention must be 'fused' with group, got 'eager'": lambda here: na.patch(
        here.model, group=here.group, attention="eager"
    ),
    "sink must be 0 with group, got 2": lambda here: na.patch(
        here.model, group=here.group, window=4, sink=2
    ),
    "batch must have at least 2 tokens, one a rank, got 1": lambda here: shard(
        {"input_ids": here.ids[:, :1]}, here.group
    ),
    "batch must have at least 4 tokens, two a rank, got 3": lambda here: shard(
        {"input_ids": here.ids[:, :3]}, here.group, layout="zigzag"
    ),
    "batch must have a tensor input_ids or inputs_embeds": lambda here: shard(
        {"labels": here.ids}, here.group
    ),
    "on rank 1: input_ids must be cut in the layout of the patch, 'contiguous'": lambda here: (
        here.run(**(here.zigzag if here.second else here.part))
    ),
    "on rank 0: input_ids must be cut in the layout of the patch, 'zigzag'": lambda here: here.run(
        **here.part, patch={"layout": "zigzag"}
    ),
    "input_ids must be the parts of shard(batch, group, layout='zigzag'), [71, 70": lambda here: (
        here.run(here.ids[:, : 70 + here.rank], {"layout": "zigzag"})
    ),
    "on rank 1: labels must be those of this rank's part": lambda here: here.run(
        here.own, labels=here.ids if here.second else here.own
    ),
    "on rank 0: num_items_in_batch must be None in a model patched with group, go": lambda here: (
        here.run(here.own, labels=here.own, num_items_in_batch=80)
    ),
    "on rank 1: input_ids must have at least one token": lambda here: here.run(
        here.own[:, :0] if here.second else here.own
    ),
    "on rank 1: input_ids or inputs_embeds must be given": lambda here: here.run(
        None if here.second else here.own
    ),
    "on rank 0: attention_mask must be of this rank's part of input_ids, (batch,": lambda here: (
        here.run(here.own, attention_mask=torch.ones(1, 160))
    ),
    "on rank 0: output_attentions must be False in a model patched with group, go": lambda here: (
        here.run(here.own, output_attentions=True)
    ),
    "the model must be the same on all ranks, got BloomModel of 3 layers, training": lambda here: (
        here.run(here.own, model=make_model("bloom").train(here.second))
    ),
    "the model must be the same on all ranks, got BloomModel of 3 layers": lambda here: here.run(
        here.own, model=make_model("mpt" if here.second else "bloom")
    ),
    "the patch must be the same on all ranks, got NTK(factor=2.0), attention='fus": lambda here: (
        here.run(here.own, {"scaling": na.NTK(2.0 + here.rank)})
    ),
    "the patch must be the same on all ranks, got NTK(factor=2.0), attention='fu": lambda here: (
        here.cached(here.ids, {"scaling": na.NTK(2.0 + here.rank)})
    ),
    "the patch must be the same on all ranks, got None, attention='fused', group": lambda here: (
        here.run(here.ids[:, :80], {"layout": "zigzag" if here.second else "contiguous"})
    ),
    f"on rank 0: {CACHE} must be a ShardedCache, or None, in a model patch": lambda here: (
        here.generated()
    ),
    f"on rank 0: {CACHE} must be a ShardedCache of the group that the mode": lambda here: here.run(
        here.ids, **{CACHE: na.ShardedCache(here.alone)}
    ),
    f"on rank 0: layout must be 'contiguous' with {CACHE}, which cuts the": lambda here: (
        here.cached(here.ids, {"layout": "zigzag"})
    ),
    f"{CACHE} must not be a ShardedCache in a model that is patched without": lambda here: (
        here.cached(here.ids, {"group": None})
    ),
    f"{CACHE} must not be a ShardedCache in a model that is not patched wi": lambda here: (
        here.model(here.ids, **{CACHE: na.ShardedCache(here.group)})
    ),
    "checksum of input_ids must be the same on all ranks": lambda here: here.cached(
        here.ids + here.rank
    ),
    "checksum of attention_mask must be the same on all ranks": lambda here: here.cached(
        here.ids, attention_mask=(torch.arange(160) >= 4 * here.second).long()[None]
    ),
    "input_ids must be the same on all ranks, got (1, 1) on rank 0 and (1, 2) on": lambda here: (
        here.continued(here.ids[:, : 1 + here.rank])
    ),
    "on rank 1: attention_mask must": lambda here: here.continued(
        here.ids[:, :1], attention_mask=torch.ones(1, 9 if here.second else 101)
    ),
    "on rank 1: query, key, value, scale and bias must give scores": Here.beyond_float32,
}


def on_rank(rank: int) -> dict[str, str]:
    """Return what this rank hears, by the sentences of `REFUSED`."""
    here = Here(rank)
    said = heard(REFUSED, here)
    assert here.run(**here.part).loss.isfinite()  # the group works on
    return said


@pytest.fixture(scope="module")
def heard_by() -> list[dict[str, str]]:
    return run(RANKS, on_rank)


@pytest.mark.parametrize("sentence", REFUSED)
def test_all_ranks_hear_the_same_sentence(sentence: str, heard_by: list[dict[str, str]]) -> None:
    assert_both_hear(sentence, heard_by)
