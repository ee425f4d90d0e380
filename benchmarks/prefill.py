"""Benchmark of prefill: causal attention over prompts of many lengths, all candidates in turn."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

import ntk_alibi as na
from benchmarks import peak, problems
from benchmarks.candidates import BASELINE, OURS, TORCH, Candidate
from benchmarks.optional_peers import OPTIONAL
from benchmarks.problems import Case, Problem, nano_bloom_config
from ntk_alibi.cli.timing import REST, Call, interleaved
from ntk_alibi.methods import method_name

CANDIDATES = [BASELINE, *TORCH, *OPTIONAL, *OURS]

SECONDS_PER_TURN = 0.1

#: If the first round takes more seconds than this, there is no further round.
LONG_ROUND = 20.0

#: For estimates: share of the peak that torch's kernel reaches, and a peak in case of no probe.
BASELINE_SHARE, SOME_SPEED = 0.6, 50e9

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384, 32768]
KINDS = [(dim, dtype) for dtype in (FLOAT32, BFLOAT16) for dim in (64, 128)]


@cache
def thread_counts() -> list[int]:
    """Return 1 and the core's default number of threads."""
    return sorted({1, int(na.info()["threads"])})


def short() -> list[Case]:
    """Return short cases, in which the overhead of a call matters."""
    return [
        Case(length, dim, dtype, threads)
        for threads in thread_counts()
        for dim, dtype in KINDS
        for length in (128, 256)
    ]


def with_all_threads(dtype: torch.dtype, head_dim: int) -> list[Case]:
    """Return the main cases of a dtype and head size.

    The first kind has every length and also a scaled bias, the others every second length.
    """
    threads = thread_counts()[-1]
    if (head_dim, dtype) != KINDS[0]:
        return [Case(length, head_dim, dtype, threads) for length in LENGTHS[::2]]
    plain = [Case(length, head_dim, dtype, threads) for length in LENGTHS]
    return plain + [Case(n, head_dim, dtype, threads, na.NTK(4.0)) for n in (8192, 16384)]


def with_one_thread() -> list[Case]:
    """Return cases for one thread; none if the default is one thread."""
    return [
        Case(length, dim, dtype, 1)
        for dim, dtype in KINDS
        for length in ((512, 2048, 8192) if dim == 64 else (2048,))
        if len(thread_counts()) > 1
    ]


def real() -> list[Case]:
    """Return cases with the inputs of a trained model, nano BLOOM, beyond its training length."""
    config = nano_bloom_config()
    head_dim = config.hidden_size // config.n_head
    return [
        Case(length, head_dim, dtype, thread_counts()[-1], scaling, real=True)
        for dtype in (FLOAT32, BFLOAT16)
        for length, scaling in [(2048, None), (2048, na.NTK(4.0)), (8192, na.NTK(4.0))]
    ]


def measure(cases: Iterable[Case], rounds: int) -> list[dict[str, Any]]:
    """Return the results of each case: description, median seconds, errors, peaks, blocks read."""
    results = []
    for case in cases:
        begin = time.perf_counter()
        with problems.threads(case.threads):
            results.append(_measure_case(case, rounds))
        gc.collect()
        print(f"  {time.perf_counter() - begin:.0f} s: {case}", file=sys.stderr, flush=True)
    return results


def estimate(cases: Iterable[Case], rounds: int) -> float:
    """Return roughly how many seconds `measure` takes."""
    return sum(_estimate_case(case, rounds) for case in cases)


def baseline_seconds(case: Case) -> float:
    """Return roughly how many seconds torch's kernel takes without a bias on an idle machine."""
    peak_of_one = _peak_of_one() or SOME_SPEED
    return case.operations / (BASELINE_SHARE * peak_of_one * case.threads)


@cache
def _peak_of_one() -> float:
    """Measure the peak of one thread, which other processes disturb least."""
    return max(peak.fma_probe()(1) for _ in range(5))


def _fitting(case: Case) -> list[Candidate]:
    return [c for c in CANDIDATES if c.fits(case, baseline_seconds(case))]


def _estimate_case(case: Case, rounds: int) -> float:
    candidates = _fitting(case)
    calls = [c.cost * baseline_seconds(case) for c in candidates]
    once = sum(calls) + sum(c.set_up for c in candidates) + 1.0
    if sum(calls) > LONG_ROUND:
        return once
    rests = REST * len({c.runtime for c in candidates})
    return once + rounds * (sum(max(s, SECONDS_PER_TURN) for s in calls) + rests)


def _measure_case(case: Case, rounds: int) -> dict[str, Any]:
    problem = problems.build(case)
    probes = {"fma": peak.fma_probe(), "bf16_dot": peak.bf16_dot_probe()}
    peaks = {name: probe(case.threads) for name, probe in probes.items()}

    def probe_again() -> None:
        peaks.update({k: max(peaks[k], probe(case.threads)) for k, probe in probes.items()})

    calls, seconds, errors = _first_round(problem)
    long = sum(seconds.values()) > LONG_ROUND
    if not long:
        seconds = interleaved(
            calls,
            rounds,
            SECONDS_PER_TURN,
            warm_up=False,
            runtimes={c.name: c.runtime for c in CANDIDATES},
            before_round=probe_again,
        )
    return {
        **_description(case),
        "rounds": 1 if long else rounds,
        "seconds": seconds,
        "errors": errors,
        "peaks": peaks,
        "blocks_read": {c.name: problems.blocks_read(problem, t) for c, t in _skipping()},
    }


def _skipping() -> list[tuple[Candidate, float]]:
    return list(zip(OURS[1:], (0.0, 2.0**-9), strict=True))


def _description(case: Case) -> dict[str, Any]:
    batch, heads = case.batch_and_heads
    return {
        "length": case.length,
        "head_dim": case.head_dim,
        "dtype": problems.dtype_name(case.dtype),
        "threads": case.threads,
        "scaling": None if case.scaling is None else method_name(case.scaling),
        "inputs": "nano BLOOM" if case.real else "random",
        "batch": batch,
        "heads": heads,
        "operations": case.operations,
    }


def _first_round(
    problem: Problem,
) -> tuple[dict[str, Call], dict[str, float], dict[str, float]]:
    """Return calls, seconds and errors of the candidates that work on this machine."""
    calls: dict[str, Call] = {}
    seconds: dict[str, float] = {}
    errors: dict[str, float] = {}
    for candidate in _fitting(problem.case):
        try:
            call = candidate.prepare(problem)
            if candidate.set_up:
                call()  # compiles
            begin = time.perf_counter()
            result = call()
            elapsed = time.perf_counter() - begin
            if candidate.biased:
                errors[candidate.name] = problems.error(problem, candidate.output(result, problem))
        except Exception as failure:  # a failing peer must not end the run
            if candidate in OURS:
                raise
            print(f"  left out: {candidate.name}: {failure!r}", file=sys.stderr)
            continue
        calls[candidate.name], seconds[candidate.name] = call, elapsed
    return calls, seconds, errors
