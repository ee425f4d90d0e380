"""Benchmark of masks of pairs: ours, torch's SDPA and FlexAttention with the same masks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ntk_alibi as na
from benchmarks import problems
from ntk_alibi.cli.timing import Call, interleaved
from ntk_alibi.evaluation.report.markdown import describe_machine, table

HEADS, HEAD_DIM = 16, 64
LENGTH, CACHE = 4096, 32768
PREFIX, DOCUMENT, DRAFTS = 1024, 256, 64
SECONDS_PER_TURN = 0.3

BASELINE = "ours without a mask"
KEPT, ARRAY = "ours, `BlockMask`", "ours, array"
SDPA, FLEX = "torch SDPA, boolean", "torch FlexAttention"


def run(rounds: int, length: int = LENGTH, cache: int = CACHE) -> str:
    """Run the benchmark and return its table as Markdown."""
    cases = {
        **{f"{name}, {length}": (length, length, mask) for name, mask in masks(length).items()},
        f"leaf of a tree, 1 query, {cache}": (1, cache, leaf(cache)),
    }
    rows = []
    with torch.no_grad(), problems.threads(1):
        for name, (queries, keys, mask) in cases.items():
            torch.compiler.reset()
            seconds = interleaved(candidates(queries, keys, mask), rounds, SECONDS_PER_TURN)
            rows.append([name, *(f"{1e3 * x:.2f}" for x in seconds.values())])
        machine = describe_machine()
    head = (
        f"{machine}; float32, B = 1, H = {HEADS}, D = {HEAD_DIM}, unit-variance inputs, no bias; "
        f"ms, medians of {rounds} interleaved rounds"
    )
    return f"{head}\n\n{table(['', BASELINE, KEPT, ARRAY, SDPA, FLEX], rows)}"


def masks(length: int) -> dict[str, torch.Tensor]:
    """Return the masks of a text, (1, 1, length, length) each."""
    row, column = torch.arange(length)[:, None], torch.arange(length)[None]
    half = torch.rand((length, length), generator=torch.Generator().manual_seed(1)) < 0.5
    found = {
        "all pairs": torch.ones((length, length), dtype=torch.bool),
        "causal": column <= row,
        f"prefix of {PREFIX}": (column <= row) | (column < PREFIX),
        f"documents of {DOCUMENT}": row // DOCUMENT == column // DOCUMENT,
        "a random half": half,
    }
    return {name: mask[None, None] for name, mask in found.items()}


def leaf(cache: int) -> torch.Tensor:
    """Return the mask of a draft that sees the text and half of the other drafts."""
    mask = torch.ones((1, 1, 1, cache), dtype=torch.bool)
    mask[..., -DRAFTS:-1:2] = False
    return mask


def candidates(queries: int, keys: int, mask: torch.Tensor) -> dict[str, Call]:
    """Return the calls; the causal mask is compared with causal=True."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = inputs = [
        torch.randn((1, HEADS, n, HEAD_DIM), generator=generator) for n in (queries, keys, keys)
    ]
    kept = na.BlockMask(mask)
    causal = torch.equal(mask[0, 0], torch.ones_like(mask[0, 0]).tril(keys - queries))
    return {
        BASELINE: lambda: na.attention(*inputs, causal=causal),
        KEPT: lambda: na.attention(*inputs, causal=False, mask=kept),
        ARRAY: lambda: na.attention(*inputs, causal=False, mask=mask),
        SDPA: lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=mask),
        FLEX: _flex(inputs, mask),
    }


def _flex(inputs: list[torch.Tensor], mask: torch.Tensor) -> Call:
    """Return FlexAttention compiled, with its mask of blocks made before."""
    pairs = mask[0, 0]

    def mask_mod(batch: Any, head: Any, query: Any, key: Any) -> torch.Tensor:
        del batch, head
        return pairs[query, key]

    given: Any = mask_mod
    queries, keys = pairs.shape
    of_blocks = create_block_mask(given, None, None, queries, keys, device="cpu")
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(*inputs, block_mask=of_blocks)
