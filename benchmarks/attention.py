"""Benchmark of causal ALiBi attention against other libraries, in parts that can be run singly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import decode, memory, overhead, peak, prefill, prefill_results
from benchmarks.problems import Case, dtype_name
from ntk_alibi.evaluation.report.markdown import describe_machine, table

PICTURE = "../../docs/pictures/attention-speed.png"  # relative to the document


@dataclass(frozen=True)
class Settings:
    """Settings of one run.

    Attributes:
        results: JSON file of medians; new medians replace earlier ones of the same parts. The
            picture is written beside it.
        parts: names of parts, keys of `PARTS`.
        rounds: turns of each candidate.
        longest: number of tokens above which problems are left out.
        measured: whether to measure nothing and show the medians in `results`.
    """

    results: Path
    parts: Sequence[str]
    rounds: int
    longest: int
    measured: bool = False


@dataclass(frozen=True)
class Part:
    """A section of the document.

    Attributes:
        measure: measures and returns medians and other results, in types that JSON has.
        markdown: returns the tables of these results.
        estimate: returns the seconds that measuring takes.
    """

    measure: Callable[[Settings], Any]
    markdown: Callable[[Any], str]
    estimate: Callable[[Settings], float]


def run(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield sections of the document, each as soon as it is measured, and finally the picture."""
    if not settings.measured:
        _print_estimates(settings)
    for name in settings.parts:
        if not settings.measured:
            _measure(name, settings)
        if part := _read(settings.results).get(name):
            yield f"attention-{name}", _markdown(name, part)
    if cases := _drawn(_read(settings.results)):
        prefill_results.draw(cases, settings.results.with_suffix(".png"))
        yield "attention-picture", f"![Milliseconds over tokens, ours and peers]({PICTURE})"


def _print_estimates(settings: Settings) -> None:
    minutes = {name: PARTS[name].estimate(settings) / 60 for name in settings.parts}
    parts = ", ".join(f"{name} {number:.1f}" for name, number in minutes.items())
    print(f"about {sum(minutes.values()):.0f} minutes: {parts}", file=sys.stderr, flush=True)


def _measure(name: str, settings: Settings) -> None:
    print(name, file=sys.stderr, flush=True)
    machine = describe_machine(("onnxruntime", "jax"))
    measured = PARTS[name].measure(settings)
    if not measured:
        return  # all problems are longer than settings.longest
    part = {"machine": machine, "rounds": settings.rounds, "measured": measured}
    settings.results.parent.mkdir(parents=True, exist_ok=True)
    settings.results.write_text(json.dumps({**_read(settings.results), name: part}, indent=1))


def _read(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return results


def _markdown(name: str, part: dict[str, Any]) -> str:
    head = f"{part['machine']}; medians of {part['rounds']} interleaved rounds."
    return f"{head}\n\n{PARTS[name].markdown(part['measured'])}"


def _drawn(results: dict[str, Any]) -> list[prefill_results.Result]:
    """Return the cases for the picture; none if fewer than two of their parts are measured."""
    names = [name for name in results if name == "short" or name.startswith("prefill")]
    cases = [case for name in names for case in results[name]["measured"]]
    return cases if len(names) > 1 else []


def _prefill(cases: Callable[[], list[Case]]) -> Part:
    def chosen(settings: Settings) -> list[Case]:
        return [case for case in cases() if case.length <= settings.longest]

    return Part(
        lambda settings: prefill.measure(chosen(settings), settings.rounds),
        prefill_results.markdown,
        lambda settings: prefill.estimate(chosen(settings), settings.rounds),
    )


def _peaks(_: Settings) -> list[list[str]]:
    probes = {
        "multiply-adds of float32, GFLOP/s": peak.fma_probe(),
        "dot products of bfloat16, GFLOP/s": peak.bf16_dot_probe(),
        "reading memory, GB/s": peak.read_probe(),
    }
    best = [
        [name, *(f"{max(probe(t) for _ in range(3)) / 1e9:.0f}" for t in prefill.thread_counts())]
        for name, probe in probes.items()
    ]
    return [["", *(f"threads: {threads}" for threads in prefill.thread_counts())], *best]


def _decode_cases(settings: Settings) -> list[tuple[int, torch.dtype]]:
    dtypes = torch.float32, torch.bfloat16
    return [(n, dtype) for dtype in dtypes for n in decode.KEYS if n <= 4 * settings.longest]


PARTS = {
    "machine": Part(_peaks, lambda rows: table(rows[0], rows[1:]), lambda _: 10.0),
    "short": _prefill(prefill.short),
    **{
        f"prefill-{dtype_name(dtype)}-{dim}": _prefill(
            partial(prefill.with_all_threads, dtype, dim)
        )
        for dim, dtype in prefill.KINDS
    },
    "prefill-one-thread": _prefill(prefill.with_one_thread),
    "real": _prefill(prefill.real),
    "decode": Part(
        lambda s: [decode.measure(n, dtype, s.rounds) for n, dtype in _decode_cases(s)],
        lambda results: "\n\n".join(decode.markdown(result) for result in results),
        lambda s: sum(decode.estimate(n, s.rounds) for n, _ in _decode_cases(s)),
    ),
    "memory": Part(
        lambda s: memory.measure(min(memory.LENGTH, s.longest)),
        memory.markdown,
        lambda _: memory.estimate(),
    ),
    "overhead": Part(
        lambda s: overhead.measure(s.rounds),
        overhead.markdown,
        lambda s: overhead.estimate(s.rounds),
    ),
}
