"""When a rank ends, the others raise an error, and do not hang."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

import ntk_alibi as na
from processes import run


def dies(rank: int, size: int) -> str:
    """Let rank 1 go between two calls, and let the other continue."""
    query, key, value = torch.ones(3, 1, 4, 64, 8)
    group = distributed.group.WORLD
    na.distributed.attention(query, key, value, na.ALiBi(4), group=group)
    if rank == 1:
        return "gone"  # and its process ends
    with pytest.raises(RuntimeError) as error:
        na.distributed.attention(query, key, value, na.ALiBi(4), group=group)
    return type(error.value).__name__


def test_a_rank_that_is_gone_is_an_error_and_no_hang() -> None:
    assert run(2, dies, 2, seconds=20)[1] == "gone"
