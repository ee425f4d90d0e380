"""Run one of the eleven benchmarks.

They are bias, errors, gradient, masks, compiled, bloom, models, short, real, attention and gpu.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ntk_alibi as na
from benchmarks import (
    DOCUMENT,
    ROOT,
    attention,
    bias,
    bloom,
    compiled,
    errors,
    gpu,
    gradient,
    masks,
    models,
    real,
    short,
)
from ntk_alibi.evaluation.report.markdown import replace_section

PUBLISHED = (DOCUMENT.parent / attention.PICTURE).with_suffix(".json")
RESULTS = ROOT / f"build/attention-{na.info()['isa']}.json"


def main() -> None:
    """Run a benchmark, print its tables and, with --write, put them into results/tables.md."""
    parser = _parser()
    options = parser.parse_args()
    if options.write and getattr(options, "results", None):
        parser.error("--write has its fixed results file, which --results must not replace")
    if options.benchmark == "gpu" and not gpu.available():
        parser.error(gpu.NO_GPU)
    if options.benchmark == "real" and not real.available():
        parser.error(real.MISSING)
    for name, text in _sections(options):
        print(text, end="\n\n", flush=True)
        if options.write:
            replace_section(DOCUMENT, name, text)


def _sections(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of the sections of a benchmark."""
    if options.benchmark == "attention":
        yield from _attention(options)
    elif options.benchmark == "models":
        for name in options.parts:
            yield name, models.run(options.rounds, options.longest, models.PARTS[name])
    else:
        yield options.benchmark, ONE_TABLE[options.benchmark].run(options.rounds)


def _attention(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    results = options.results or (PUBLISHED if options.write else RESULTS)
    return attention.run(
        attention.Settings(results, options.only, options.rounds, options.longest, options.measured)
    )


#: The benchmarks of one section.
ONE_TABLE: dict[str, Any] = {
    "bias": bias,
    "errors": errors,
    "gradient": gradient,
    "masks": masks,
    "compiled": compiled,
    "bloom": bloom,
    "short": short,
    "real": real,
    "gpu": gpu,
}


def _parts(text: str) -> list[str]:
    """Return the names of the parts that begin with one of the comma-separated beginnings."""
    beginnings = text.split(",")
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in attention.PARTS):
            raise argparse.ArgumentTypeError(f"no part begins with {beginning!r}")
    return [name for name in attention.PARTS if name.startswith(tuple(beginnings))]


_KINDS = {int: "a whole number", float: "a number"}


def _at_least(least: float, number: type) -> Callable[[str], Any]:
    """Return a converter of counts and durations of the command line."""

    def convert(text: str) -> Any:
        try:
            value = number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {_KINDS[number]}, got {text!r}") from None
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return value

    return convert


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    benchmarks = parser.add_subparsers(dest="benchmark", required=True)
    of_rounds = {
        "bias": 7,
        "errors": 1,
        "gradient": 3,
        "masks": 5,
        "bloom": 3,
        "short": 7,
        "real": 3,
    }
    of_rounds |= {"compiled": 5, "gpu": 9}
    longest = {"models": max(models.LENGTHS), "attention": 32768}
    for name, rounds in (of_rounds | dict.fromkeys(longest, 3)).items():
        benchmark = benchmarks.add_parser(name)
        benchmark.add_argument(
            "--rounds",
            type=_at_least(1, int),
            default=rounds,
            help="turns of each candidate (default: %(default)s)",
        )
        benchmark.add_argument(
            "--write", action="store_true", help=f"write the tables into {DOCUMENT.name}"
        )
        if name == "models":
            benchmark.add_argument(
                "--parts",
                nargs="+",
                choices=list(models.PARTS),
                default=list(models.PARTS),
                help="tables that are measured (default: %(default)s)",
            )
        if name in longest:
            benchmark.add_argument(
                "--longest",
                type=_at_least(1, int),
                default=longest[name],
                help="number of tokens above which nothing is measured (default: %(default)s)",
            )
    benchmark.add_argument(
        "--only",
        type=_parts,
        default=list(attention.PARTS),
        metavar="PARTS",
        help="parts to measure, as comma-separated beginnings of their names: "
        f"{', '.join(attention.PARTS)}",
    )
    benchmark.add_argument(
        "--results",
        type=Path,
        help=f"JSON file that the medians are added to (default: {RESULTS.name} in build/); not "
        f"with --write, which uses {PUBLISHED.name} beside the picture of {DOCUMENT.name}",
    )
    benchmark.add_argument(
        "--measured",
        action="store_true",
        help="measure nothing; show the medians that the results file holds",
    )
    return parser


if __name__ == "__main__":
    main()
