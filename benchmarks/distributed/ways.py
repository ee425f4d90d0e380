"""Ways to compute attention over a sequence that several processes share.

All have the signature (problem, query, key, value) -> output; tensors are the part of this process
in the default process group. All but ours are the usual ways, written on plain collectives; their
parts are computed by the same kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

import ntk_alibi as na
from benchmarks.distributed.problem import Problem


def ring(
    problem: Problem, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Pass all keys and values around once; each step continues the result of those before."""
    rank, size, length = distributed.get_rank(), distributed.get_world_size(), query.shape[2]
    columns = torch.arange(length)
    held = torch.stack([key, value])
    known: Any = None
    for step in range(size):
        handles = []
        if step + 1 < size:
            arriving = torch.empty_like(held)
            handles = [
                distributed.isend(held, (rank + 1) % size),
                distributed.irecv(arriving, (rank - 1) % size),
            ]
        source = (rank - step) % size
        if source <= rank:
            known = na.attention(
                query,
                held[0],
                held[1],
                problem.bias,
                query_positions=rank * length + columns,
                key_positions=source * length + columns,
                initial=known,
                return_logsumexp=True,
            )
        for handle in handles:
            assert handle is not None
            handle.wait()
        if handles:
            held = arriving
    output: torch.Tensor = known[0]
    return output


def all_gather(
    problem: Problem, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Gather all keys and values on every process."""
    own = torch.stack([key, value])
    every = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, own)
    keys, values = torch.cat(every[: distributed.get_rank() + 1], dim=3)
    output: torch.Tensor = na.attention(query, keys, values, problem.bias)
    return output


def ulysses(
    problem: Problem, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Exchange parts of the sequence for heads, compute whole heads, and exchange back.

    Raises:
        ValueError: the processes do not divide the heads.
    """
    rank, size = distributed.get_rank(), distributed.get_world_size()
    check_heads(problem.heads, size)
    heads, length, channels = problem.heads // size, query.shape[2], problem.head_dim
    rows = [x[0].unflatten(0, (size, heads)) for x in (query, key, value)]
    arrived = _exchanged(torch.stack(rows, 1))  # (ranks, 3, heads, length, channels)
    whole = arrived.permute(1, 2, 0, 3, 4).reshape(3, 1, heads, size * length, channels)
    slopes = na.alibi_slopes(problem.heads, problem.scaling)[rank * heads : (rank + 1) * heads]
    bias = na.ALiBi(heads, slopes=slopes)
    output = na.attention(whole[0], whole[1], whole[2], bias)
    home = output[0].unflatten(1, (size, length)).transpose(0, 1)
    return _exchanged(home).flatten(0, 1)[None]


def ours(
    problem: Problem, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Send what is not proven to weigh nothing."""
    group = distributed.group.WORLD
    output: torch.Tensor = na.distributed.attention(query, key, value, problem.bias, group=group)
    return output


def check_heads(heads: int, size: int) -> None:
    """Refuse heads that the processes do not divide."""
    if heads % size:
        raise ValueError(
            f"Ulysses needs a number of heads that the processes divide, got {heads} heads and "
            f"{size} processes"
        )


#: All ways by their names in tables; ours is last.
WAYS = {"ring": ring, "all-gather": all_gather, "Ulysses": ulysses, "ours": ours}


def _exchanged(parts: torch.Tensor) -> torch.Tensor:
    """Send part i to process i, and return the parts that arrive, in the order of processes."""
    arriving = torch.empty_like(parts, memory_format=torch.contiguous_format)
    distributed.all_to_all_single(arriving, parts.contiguous())
    return arriving
