"""Benchmark of bias tensors: ours, transformers, torch's one-liner, x-transformers, `fill_`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as transformers_builder

import ntk_alibi as na
from ntk_alibi.cli.timing import Call, interleaved
from ntk_alibi.evaluation.report.markdown import describe_machine, table

BATCH, HEADS, KEYS = 8, 112, 8192
DENSE_HEADS, DENSE_LENGTH = 16, 8192


def run(rounds: int) -> str:
    """Run the benchmark and return all tables as Markdown."""
    return "\n\n".join(
        [
            describe_machine() + f"; medians of {rounds} interleaved rounds.",
            *(key_only(dtype, rounds) for dtype in (torch.float32, torch.bfloat16)),
            *(dense(dtype, rounds) for dtype in (torch.float32, torch.bfloat16)),
        ]
    )


def key_only(dtype: torch.dtype, rounds: int) -> str:
    """Return the table of `build_alibi_tensor`: 112 heads as in BLOOM-176B, 8 rows, 8192 tokens."""
    mask = torch.ones((BATCH, KEYS), dtype=torch.long)
    out = torch.empty((BATCH * HEADS, 1, KEYS), dtype=dtype)
    calls: dict[str, Call] = {
        "filling the buffer (`fill_`)": lambda: out.fill_(1.0),
        "ours, `out=`": lambda: na.build_alibi_tensor(mask, HEADS, dtype, out=out),
        "ours": lambda: na.build_alibi_tensor(mask, HEADS, dtype),
        "transformers": lambda: transformers_builder(mask, HEADS, dtype),
    }
    seconds = interleaved(calls, 3 * rounds, seconds_per_turn=0.02)
    title = f"`build_alibi_tensor`, ({BATCH}·{HEADS}, 1, {KEYS}), {dtype}"
    return _table(title, seconds, "transformers", out)


def dense(dtype: torch.dtype, rounds: int) -> str:
    """Return the table of the relative bias of all pairs."""
    out = torch.empty((1, DENSE_HEADS, DENSE_LENGTH, DENSE_LENGTH), dtype=dtype)
    bias = na.ALiBi(DENSE_HEADS, sides="symmetric")
    slopes = torch.tensor(na.alibi_slopes(DENSE_HEADS))
    calls: dict[str, Call] = {
        "filling the buffer (`fill_`)": lambda: out.fill_(1.0),
        "ours, `out=`": lambda: bias.tensor(DENSE_LENGTH, DENSE_LENGTH, out=out),
        "ours": lambda: bias.tensor(DENSE_LENGTH, DENSE_LENGTH, dtype),
        "torch's one-liner": lambda: one_liner(slopes).to(dtype),
    }
    try:
        from x_transformers.x_transformers import AlibiPositionalBias
    except ImportError:
        pass
    else:

        def x_transformers() -> torch.Tensor:
            module = AlibiPositionalBias(DENSE_HEADS, DENSE_HEADS)
            result: torch.Tensor = module(DENSE_LENGTH, DENSE_LENGTH).to(dtype)
            return result

        calls["x-transformers"] = x_transformers
    seconds = interleaved(calls, rounds, seconds_per_turn=1.0)
    title = f"`ALiBi.tensor`, ({DENSE_HEADS}, {DENSE_LENGTH}, {DENSE_LENGTH}), {dtype}"
    return _table(title, seconds, "torch's one-liner", out)


def one_liner(slopes: torch.Tensor) -> torch.Tensor:
    """Return the relative bias by the usual one-line formula."""
    positions = torch.arange(DENSE_LENGTH)
    return -slopes[:, None, None] * (positions[:, None] - positions[None, :]).abs()


def _table(title: str, seconds: Mapping[str, float], peer: str, out: torch.Tensor) -> str:
    size = out.numel() * out.itemsize
    fill = seconds["filling the buffer (`fill_`)"]
    rows = [
        [
            name,
            f"{1e3 * s:.2f}",
            f"{size / s / 1e9:.1f}",
            f"{100 * fill / s:.0f} %",
            f"{seconds[peer] / s:.2f}",
        ]
        for name, s in seconds.items()
    ]
    header = ["", "ms", "GB/s written", "of filling", f"speed / {peer}"]
    return f"{title}\n\n{table(header, rows)}"
