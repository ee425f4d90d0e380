"""Benchmark of torch.compile at many lengths: ours, torch's SDPA and FlexAttention."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor.exc import InductorError
from torch._inductor.utils import fresh_cache
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ntk_alibi as na
from benchmarks import problems
from ntk_alibi.cli.timing import interleaved
from ntk_alibi.evaluation.report.markdown import describe_machine, table

HEADS, HEAD_DIM = 8, 64

#: The first is not the shortest: torch has told us nothing of lengths that change.
LENGTHS = (512, 448, 100, 1000, 64, 65, 333, 777, 256, 1024, 200, 900)
SECONDS_PER_TURN = 0.05

Attend = Callable[..., torch.Tensor]

SLOPES = torch.tensor(na.alibi_slopes(HEADS))[:, None, None]
CAUSAL, SYMMETRIC = na.ALiBi(HEADS), na.ALiBi(HEADS, sides="symmetric")


def run(rounds: int) -> str:
    """Run the benchmark and return its table as Markdown."""
    header = ["", "first call", "11 other lengths, first", "graphs", "12 lengths, warm", "of eager"]
    rows = []
    with torch.no_grad(), problems.threads(1), fresh_cache():
        for case, peers in CASES.items():
            for name, (attend, prepare) in peers.items():
                rows.append([f"{case}: {name}", *_measured(attend, prepare, rounds)])
        machine = describe_machine()
    head = (
        f"{machine}; torch {torch.__version__}, inductor, fullgraph=True; float32, B = 1, "
        f"H = {HEADS}, D = {HEAD_DIM}, ALiBi, {min(LENGTHS)} to {max(LENGTHS)} tokens, seconds for "
        "first calls, milliseconds for the sum of 12 warm ones, medians of "
        f"{rounds} interleaved rounds; the last column is the greatest quotient of compiled and "
        "eager times at one length"
    )
    return f"{head}\n\n{table(header, rows)}"


def _measured(attend: Attend, prepare: Callable[[int], Any], rounds: int) -> list[str]:
    """Return the cells of a peer."""
    torch.compiler.reset()
    counters.clear()
    compiled: Attend = torch.compile(attend, fullgraph=True)
    first: list[float] = []
    given: dict[int, Any] = {}
    for length in LENGTHS:
        generator = torch.Generator().manual_seed(length)
        shape = (1, HEADS, length, HEAD_DIM)
        inputs = [torch.randn(shape, generator=generator) for _ in range(3)]
        given[length] = (*inputs, prepare(length))
        begin = time.perf_counter()
        try:
            compiled(*given[length])
        except InductorError:
            return [f"inductor's C++ fails at length {length}", *[""] * 4]
        first.append(time.perf_counter() - begin)
    graphs = counters["stats"]["unique_graphs"]
    warm, quotients = 0.0, []
    for length in LENGTHS:
        arguments = given[length]
        seconds = interleaved(
            {"compiled": lambda: compiled(*arguments), "eager": lambda: attend(*arguments)},  # noqa: B023
            rounds,
            SECONDS_PER_TURN,
        )
        warm += seconds["compiled"]
        quotients.append(seconds["compiled"] / seconds["eager"])
    return [
        f"{first[0]:.1f}",
        f"{sum(first[1:]):.1f}",
        str(graphs),
        f"{1e3 * warm:.1f}",
        f"{max(quotients):.2f} (median {statistics.median(quotients):.2f})",
    ]


def _pairs(length: int) -> torch.Tensor:
    half = torch.rand((length, length), generator=torch.Generator().manual_seed(length)) < 0.5
    return half | torch.eye(length, dtype=torch.bool)


def _distances(length: int) -> torch.Tensor:
    columns = torch.arange(length)
    return (columns[:, None] - columns).float()


def _sdpa(query: Any, key: Any, value: Any, pairs: Any) -> torch.Tensor:
    distance = _distances(query.shape[2])
    seen = distance >= 0 if pairs is None else pairs
    bias = torch.where(seen, -SLOPES * distance.abs(), -torch.inf)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])


def _alibi(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    del batch
    return score - torch.exp2(-1.0 - head) * (query - key).abs()  # the slopes of 8 heads


def _flex(query: Any, key: Any, value: Any, blocks: Any) -> torch.Tensor:
    output: Any = flex_attention(query, key, value, score_mod=_alibi, block_mask=blocks)
    return torch.as_tensor(output)


def _causal_blocks(length: int) -> Any:
    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        del batch, head
        return query >= key

    return create_block_mask(causal, None, None, length, length, device="cpu")


def _blocks_of_pairs(length: int) -> Any:
    pairs = _pairs(length)

    def shown(batch: Any, head: Any, query: Any, key: Any) -> Any:
        del batch, head
        return pairs[query, key]

    return create_block_mask(shown, None, None, length, length, device="cpu")


#: What attends, and what makes its mask for a length, by peers and cases.
CASES: dict[str, dict[str, tuple[Attend, Callable[[int], Any]]]] = {
    "causal": {
        "ours": (lambda q, k, v, _: na.attention(q, k, v, CAUSAL), lambda _: None),
        "SDPA": (_sdpa, lambda _: None),
        "FlexAttention": (_flex, _causal_blocks),
    },
    "a new mask of pairs": {
        "ours": (
            lambda q, k, v, mask: na.attention(q, k, v, SYMMETRIC, causal=False, mask=mask),
            lambda length: _pairs(length)[None, None],
        ),
        "SDPA": (_sdpa, _pairs),
        "FlexAttention": (_flex, _blocks_of_pairs),
    },
}
