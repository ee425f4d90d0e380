"""Benchmark of the overhead of a call: microseconds of tiny problems."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import torch

import ntk_alibi as na
from benchmarks import problems
from benchmarks.candidates import BASELINE, key_row
from benchmarks.problems import Case
from ntk_alibi import _core
from ntk_alibi.cli.timing import REST, Call, interleaved
from ntk_alibi.evaluation.report.markdown import table

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)
THREADS = (1, 2)
HEAD_DIM = 64
SECONDS_PER_TURN = 0.02


def measure(rounds: int) -> list[dict[str, Any]]:
    """Return median seconds for each number of threads and each length."""
    return [_measured(threads, length, rounds) for threads in THREADS for length in LENGTHS]


def _measured(threads: int, length: int, rounds: int) -> dict[str, Any]:
    calls = _calls(length, threads)
    # With several threads, one library's threads would still wait, busy, in the other's turn.
    runtimes = {name: "torch" if "torch" in name else "ours" for name in calls}
    with problems.threads(threads):
        seconds = interleaved(
            calls, 3 * rounds, SECONDS_PER_TURN, runtimes=runtimes if threads > 1 else None
        )
    return {
        "length": length,
        "threads": threads,
        "head_dim": HEAD_DIM,
        "heads": problems.HEADS,
        "seconds": seconds,
    }


def estimate(rounds: int) -> float:
    """Return roughly how many seconds `measure` takes."""
    rests = 2 * REST * sum(threads > 1 for threads in THREADS) / len(THREADS)
    return 1.0 + len(THREADS) * len(LENGTHS) * (3 * rounds + 1) * (5 * 0.025 + rests)


def markdown(results: list[dict[str, Any]]) -> str:
    """Return one table with a column for each length, for each number of threads."""
    counts = sorted({r["threads"] for r in results})
    return "\n\n".join(_table([r for r in results if r["threads"] == n]) for n in counts)


def _table(results: list[dict[str, Any]]) -> str:
    first = results[0]
    header = ["", *(f"L = {r['length']}" for r in results)]
    rows = [
        [name, *(f"{1e6 * r['seconds'][name]:.1f}" for r in results)] for name in first["seconds"]
    ]
    threads = f"{first['threads']} thread{'s' if first['threads'] > 1 else ''}"
    title = f"**H = {first['heads']}, D = {first['head_dim']}, float32, {threads}**, microseconds"
    return f"{title}\n\n{table(header, rows)}"


def _calls(length: int, threads: int) -> dict[str, Call]:
    problem = problems.build(Case(length, HEAD_DIM, torch.float32, threads))
    query, key, value = (part.numpy() for part in problem.inputs)
    bias = problem.bias
    with mock.patch.object(_core, "attention") as spy:
        na.attention(query, key, value, bias)
    arguments = spy.call_args.args
    calls: dict[str, Call] = {
        BASELINE.name: BASELINE.prepare(problem),
        "torch SDPA, causal, bias row of keys": key_row(problem),
        "`na.attention`, tensors": lambda: na.attention(*problem.inputs, bias),
        "`na.attention`, arrays": lambda: na.attention(query, key, value, bias),
        "its core alone": lambda: _core.attention(*arguments),
    }
    for name in [name for name in calls if name.startswith("torch")]:
        try:
            calls[name]()
        except (RuntimeError, ValueError) as refusal:  # torch 2.14 takes no mask with is_causal
            print(f"  left out: {name}: {refusal}", file=sys.stderr)
            del calls[name]
    return calls
