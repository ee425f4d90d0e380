"""Bytes of more processes than there are: the exchange's own bounds, one process after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ntk_alibi as na
from benchmarks.distributed.measured import (
    HEAD_DIM,
    MIB,
    SCALINGS,
    RefusalError,
    Settings,
    spread,
)
from benchmarks.distributed.problem import RUN, Problem, tokens
from benchmarks.distributed.wire import Traffic, speeds_header, tokens_per_second
from ntk_alibi import _core, masks
from ntk_alibi.distributed import bounds
from ntk_alibi.distributed.rank_call import NEAR
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.distributed.sequence import Sequence
from ntk_alibi.evaluation.report.markdown import describe_machine, table

#: For each process, the blocks that are wanted from it, (1, heads, blocks).
Wanted = list[NDArray[np.bool_]]

#: How many processes.
SIZES = (4, 16, 64)
TRAINED = 2048  # length whose multiple the proportional stretching is
MOST_SCORED = 32_768  # tokens up to which blocks of scores are counted, too
MOST_OWN = 32_768  # tokens of one process, so that its float64 copies fit into memory


@dataclass(frozen=True)
class _Known(Ranks):
    """Ranks of which this process plays one after another; what they would gather is kept."""

    norms: list[torch.Tensor]
    centres: list[torch.Tensor]

    @staticmethod
    def started(size: int) -> _Known:
        """Return ranks of which nothing is known yet."""
        group: Any = None
        return _Known(group, size, 0, [torch.empty(0)] * size, [torch.empty(0)] * size)

    def gather_rows(self, tensor: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
        """Keep the norms of this rank, and return all ranks' norms."""
        self.norms[self.rank] = tensor
        return [x if x.numel() else tensor for x in self.norms]

    def run_together(self, make: Any) -> Any:
        """Return what a function makes; no other rank can fail."""
        return make()

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Keep the centre of this rank, and return all ranks' centres."""
        self.centres[self.rank] = tensor
        return [x if x.numel() else tensor for x in self.centres]


def sections(settings: Settings) -> list[str]:
    """Return the name of the section that `run` yields."""
    return [f"distributed-computed-{settings.heads}"]


def run(settings: Settings) -> Iterator[tuple[str, str]]:
    """Compute, and yield the name and the text of the section.

    Raises:
        RefusalError: no length can be cut into the parts of any number of processes.
    """
    rows = []
    for length in settings.lengths:
        for size in SIZES:
            problem = Problem(length, settings.heads, HEAD_DIM, torch.float32)
            if length % (RUN * size) == 0 and length <= MOST_OWN * size:
                rows += _rows(problem, size, settings.latency)
    if not rows:
        raise RefusalError(
            f"a length must be a multiple of {RUN} times one of {SIZES}, with at most {MOST_OWN} "
            f"tokens a process, got {settings.lengths}"
        )
    head = (
        f"{describe_machine()}; computed, not measured: {settings.heads} heads, D = {HEAD_DIM}, "
        "float32, MiB of all processes together. Beyond 8 processes, processes 0, 1, 2, 4, "
        "8, … and the last are computed, and what the others receive is interpolated."
    )
    header = [
        "tokens, processes, slopes",
        *("ring, all-gather", "Ulysses", "ours", "ours / ring", "of it norms and wishes"),
        *("bytes received: greatest / mean", "scores: greatest / mean, ours", "Ulysses"),
    ]
    speeds = [speeds_header(settings.latency), "ring", "Ulysses", "ours"]
    tables = [
        table(header, [row[: len(header)] for row in rows]),
        table(speeds, [[row[0], *row[len(header) :]] for row in rows]),
    ]
    yield sections(settings)[0], "\n\n".join([head, *tables])


def _rows(problem: Problem, size: int, latency: float) -> list[list[str]]:
    """Return the rows of all slopes."""
    scalings = [*SCALINGS, na.NTK(problem.length / TRAINED)]
    problems = [replace(problem, scaling=x) for x in dict.fromkeys(scalings)]
    wanted = blocks_wanted(problems, size)
    rows = []
    for each in problems:
        ours = traffic(each, size, wanted[each])
        every = {
            "ring": [moved(each, size, 2 * (size - 1), size - 1)] * size,
            "Ulysses": None
            if each.heads % size
            else [moved(each, size, 4 * (size - 1) / size, 2 * (size - 1))] * size,
            "ours": ours,
        }
        sums = {name: sum(x.received for x in t) / MIB for name, t in every.items() if t}
        about = sum(x.bytes_sent for x in ours) / MIB
        scores = blocks_scored(each, size) if each.length <= MOST_SCORED else None
        rows.append(
            [
                f"{tokens(each.length)}, {size}, {each.slopes}",
                f"{sums['ring']:.0f}",
                f"{sums['Ulysses']:.0f}" if "Ulysses" in sums else "heads do not divide",
                f"{sums['ours']:.1f}",
                f"{100 * sums['ours'] / sums['ring']:.2f} %",
                f"{about:.2f}",
                spread([x.received for x in ours]),
                *_balances(scores, size),
                *(
                    tokens_per_second(each.length, t, latency=latency) if t else ""
                    for t in every.values()
                ),
            ]
        )
    return rows


def moved(problem: Problem, size: int, shards: float, messages: int) -> Traffic:
    """Return the traffic of one of equal processes that sends its tokens' keys `shards` times."""
    sent = round(shards * problem.own_length(size) * problem.token_bytes)
    return Traffic({"all": sent}, sent, messages)


def traffic(problem: Problem, size: int, wanted: dict[int, Wanted]) -> list[Traffic]:
    """Return the traffic of our exchange, without the descriptions that processes compare.

    Blocks count where they are received, since senders also serve processes that are not computed.

    Args:
        problem: the problem.
        size: number of processes.
        wanted: for some processes, the blocks that each wants from the others.
    """
    blocks = max(x.shape[2] for x in wanted[0])
    block = problem.own_length(size) // blocks * 2 * problem.token_bytes // problem.heads
    got = [sum(int(x.sum()) for x in each) * block for each in wanted.values()]
    every = np.interp(range(size), list(wanted), got)
    norms = 4 * problem.heads * (blocks + problem.head_dim) * (size - 1)
    wishes = -(-problem.heads * blocks // 8) * (size - 1)
    # four all-gathers of arrays, two of descriptions, the wishes, and at most as many blocks
    return [
        Traffic({"norms": norms, "wishes": wishes}, norms + wishes + round(x), 8 * (size - 1))
        for x in every
    ]


def blocks_wanted(problems: list[Problem], size: int) -> dict[Problem, dict[int, Wanted]]:
    """Return the blocks that some processes want from each other, by problem and process.

    Args:
        problems: problems that differ in the scaling only, so that tokens are made once.
        size: number of processes.
    """
    first = problems[0]
    ranks = _Known.started(size)
    for rank in range(size):
        _sequence(first, replace(ranks, rank=rank)).key_blocks(first.part(rank, size, 1), None)
    found: dict[Problem, dict[int, Wanted]] = {problem: {} for problem in problems}
    powers = (1 << i for i in range(size.bit_length()))
    some = range(size) if size <= 8 else sorted({0, size - 1, *(n for n in powers if n < size)})
    for rank in some:
        query, key, value = first.parts(rank, size)
        sequence = _sequence(first, replace(ranks, rank=rank))
        sources, longest = sequence.key_blocks(key, None)
        for problem in problems:
            # in the running exchange this logsumexp is not rounded to float32
            lower = na.attention(
                query, key, value, problem.bias, window=NEAR, return_logsumexp=True
            )[1]
            scale = problem.head_dim**-0.5
            tiles = sequence.query_tiles(query, None, lower, sources, longest, scale, None)
            bias = bounds.BiasBounds(sequence.kernel_bias(problem.bias, query), sequence.block)
            mask, share = sequence.problem.mask, _core.dropped_share(0.0) / 2
            found[problem][rank] = bounds.needed_blocks(tiles, sources, bias, mask, share)
    return found


def blocks_scored(problem: Problem, size: int) -> NDArray[np.int64]:
    """Return the blocks of scores by process and head, each process knowing all keys before."""
    parts = [problem.parts(rank, size) for rank in range(size)]
    key, value = (torch.cat([x[i] for x in parts], 2) for i in (1, 2))
    length = problem.own_length(size)
    counts = []
    for rank, (query, _, _) in enumerate(parts):
        end = (rank + 1) * length
        _, stats = na.attention(
            query, key[:, :, :end], value[:, :, :end], problem.bias, return_stats=True
        )
        counts.append(stats.visited[0])
    return np.array(counts)


def _balances(scores: NDArray[np.int64] | None, size: int) -> list[str]:
    """Return the spread over processes that hold tokens, and over those that hold heads."""
    if scores is None:
        return ["", ""]
    heads = scores.sum(0)
    dealt = "" if len(heads) % size else spread(heads.reshape(size, -1).sum(1).tolist())
    return [spread(scores.sum(1).tolist()), dealt]


def _sequence(problem: Problem, ranks: Ranks) -> Sequence:
    length = problem.own_length(ranks.size)
    each = {"own keys": length, "own padding": False, "own rows of positions": 1}
    return Sequence.gather(
        ranks,
        [each] * ranks.size,
        masks.Problem((1, problem.heads, length, length)),
        None,
        (None, None),
        torch.device("cpu"),
    )
