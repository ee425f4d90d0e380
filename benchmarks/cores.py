"""Benchmark of one table for all cores: the share of the peak, and the lead over torch's SDPA.

`python -m benchmarks.cores [--write]` measures the core at hand; NTK_ALIBI_ISA holds it to fewer
instructions. With --write its rows take the place of earlier ones of the same core, instruction
set and number of threads. Minima of turns are read, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import datetime
import time

import torch
from torch.nn import functional as F

import ntk_alibi as na
from benchmarks import DOCUMENT, peak, prefill, problems
from ntk_alibi.cli.timing import Call
from ntk_alibi.evaluation.report.markdown import processor, replace_section, section, table

SECTION = "cores"
CASES = [(512, 64), (2048, 64), (4096, 64), (8192, 64), (2048, 128), (4096, 128)]
ROUNDS, SECONDS_PER_TURN = 6, 0.1

#: What is compared with torch's SDPA: the column of its ratio, and the digits.
LEADS = {"every": ("times SDPA", 2), "default": ("by default", 1), "stretched": ("ntk:4", 1)}

Row = list[str]


def run() -> list[Row]:
    """Return a row for one thread, and one for all."""
    return [_row(threads) for threads in prefill.thread_counts()]


def _row(threads: int) -> Row:
    shares = []
    leads: dict[str, list[str]] = {name: [] for name in LEADS}
    with problems.threads(threads):
        for length, head_dim in CASES:
            case = problems.Case(length, head_dim, torch.float32, threads)
            best, highest = _minima(case)
            shares.append(f"{case.operations / best['every'] / highest:.2f}")
            if head_dim == 64 and length > 512:
                for name, (_, digits) in LEADS.items():
                    leads[name].append(f"{best['sdpa'] / best[name]:.{digits}f}")
    info = na.info()
    date = datetime.datetime.now(datetime.timezone.utc).date()
    first = f"{processor()}, {info['isa']}, {threads}"
    return [first, str(date), *shares, *(", ".join(each) for each in leads.values())]


def _minima(case: problems.Case) -> tuple[dict[str, float], float]:
    """Return the least seconds of each candidate, and the threads' peak together."""
    problem = problems.build(case)
    stretched = na.ALiBi(problem.bias.num_heads, na.NTK(4.0))
    calls: dict[str, Call] = {
        "every": lambda: na.attention(*problem.inputs, problem.bias, skip_tolerance=None),
        "default": lambda: na.attention(*problem.inputs, problem.bias),
        "stretched": lambda: na.attention(*problem.inputs, stretched),
        "sdpa": lambda: F.scaled_dot_product_attention(*problem.inputs, is_causal=True),
    }
    seconds = dict.fromkeys(calls, float("inf"))
    probe, highest = peak.fma_probe(), 0.0
    for _ in range(ROUNDS):
        highest = max(highest, probe(1))
        for name, call in calls.items():
            call()
            end = time.perf_counter() + SECONDS_PER_TURN
            while (begin := time.perf_counter()) < end:
                call()
                seconds[name] = min(seconds[name], time.perf_counter() - begin)
    return seconds, case.threads * highest


def header() -> Row:
    shares = [f"{length}, {head_dim}" for length, head_dim in CASES]
    return [
        "core, instructions, threads",
        "date",
        *shares,
        *(column for column, _ in LEADS.values()),
    ]


def main() -> None:
    """Measure the core at hand, print its rows, and with --write put them into the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the rows into results/tables.md")
    options = parser.parse_args()
    rows = run()
    print(table(header(), rows))
    if options.write:
        replace_section(DOCUMENT, SECTION, merged(section(DOCUMENT, SECTION), rows))


def merged(text: str, rows: list[Row]) -> str:
    """Return the table in which rows replace rows of the same first column, or follow."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    earlier = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]
    all_rows = {row[0]: row for row in [*earlier, *rows]}
    return table(header(), list(all_rows.values()))


if __name__ == "__main__":
    main()
