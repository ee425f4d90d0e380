"""Benchmark of the overhead of a call: microseconds of tiny problems."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

import ntk_alibi as na
from benchmarks import problems
from benchmarks.candidates import BASELINE, key_row
from benchmarks.problems import Case
from benchmarks.timing import Call, interleaved
from ntk_alibi import _core
from ntk_alibi.evaluation.report.markdown import table

LENGTHS = (1, 4, 16)
HEAD_DIM = 64
SECONDS_PER_TURN = 0.02


def measure(rounds: int) -> list[dict[str, Any]]:
    """Return median seconds for each length, on one thread."""
    with problems.threads(1):
        return [
            {
                "length": length,
                "head_dim": HEAD_DIM,
                "heads": problems.HEADS,
                "seconds": interleaved(_calls(length), 3 * rounds, SECONDS_PER_TURN),
            }
            for length in LENGTHS
        ]


def estimate(rounds: int) -> float:
    """Return roughly how many seconds `measure` takes."""
    return 1.0 + len(LENGTHS) * (3 * rounds + 1) * 5 * 0.03


def markdown(results: list[dict[str, Any]]) -> str:
    """Return one table with a column for each length."""
    names = list(results[0]["seconds"])
    header = ["", *(f"L = {r['length']}" for r in results)]
    rows = [[name, *(f"{1e6 * r['seconds'][name]:.1f}" for r in results)] for name in names]
    first = results[0]
    title = f"**H = {first['heads']}, D = {first['head_dim']}, float32, 1 thread**, microseconds"
    return f"{title}\n\n{table(header, rows)}"


def _calls(length: int) -> dict[str, Call]:
    problem = problems.build(Case(length, HEAD_DIM, torch.float32, 1))
    query, key, value = (part.numpy() for part in problem.inputs)
    bias = problem.bias
    with mock.patch.object(_core, "attention") as spy:
        na.attention(query, key, value, bias)
    arguments = spy.call_args.args
    return {
        BASELINE.name: BASELINE.prepare(problem),
        "torch SDPA, causal, bias row of keys": key_row(problem),
        "`na.attention`, tensors": lambda: na.attention(*problem.inputs, bias),
        "`na.attention`, arrays": lambda: na.attention(query, key, value, bias),
        "its core alone": lambda: _core.attention(*arguments),
    }
