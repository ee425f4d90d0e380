"""When a rank ends, the others raise an error, and do not hang."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

import ntk_alibi as na
from ntk_alibi.integrations.arguments import CACHE
from processes import run
from small_models import make_model


def dies(rank: int, size: int) -> str:
    """Let rank 1 go between two generated tokens, and let the other continue."""
    group, model = distributed.group.WORLD, make_model("bloom")
    ids = torch.arange(1, 61)[None].repeat(1, 3)
    with na.patch(model, group=group), torch.inference_mode():
        cache = na.ShardedCache(group)
        model(ids, **{CACHE: cache})
        model(ids[:, :1], **{CACHE: cache})
        if rank == 1:
            return "gone"  # and its process ends
        with pytest.raises(RuntimeError):
            model(ids[:, :1], **{CACHE: cache})
    query, key, value = torch.ones(3, 1, 4, 64, 8)
    with pytest.raises(RuntimeError) as error:
        na.distributed.attention(query, key, value, na.ALiBi(4), group=group)
    return type(error.value).__name__


def test_a_rank_that_is_gone_is_an_error_and_no_hang() -> None:
    assert run(2, dies, 2, seconds=20)[1] == "gone"
