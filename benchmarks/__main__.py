"""Run one of the five benchmarks: bias, gradient, bloom, gpu or attention."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import ntk_alibi as na
from benchmarks import attention, bias, bloom, gpu, gradient
from ntk_alibi.evaluation.report.markdown import replace_section

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/benchmarks.md"
PUBLISHED = (DOCUMENT.parent / attention.PICTURE).with_suffix(".json")
RESULTS = ROOT / f"build/attention-{na.info()['isa']}.json"


def main() -> None:
    """Run a benchmark, print its tables and, with --write, put them into docs/benchmarks.md."""
    parser = _parser()
    options = parser.parse_args()
    if options.write and getattr(options, "results", None):
        parser.error("--write has its fixed results file, which --results must not replace")
    if options.benchmark == "gpu" and not gpu.available():
        parser.error(gpu.NO_GPU)
    sections = SECTIONS[options.benchmark](options)
    for name, text in sections:
        print(text, end="\n\n", flush=True)
        if options.write:
            replace_section(DOCUMENT, name, text)


def _bias(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    yield "bias", bias.run(options.rounds)


def _gradient(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    yield "gradient", gradient.run(options.rounds)


def _bloom(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    yield "bloom", bloom.run(options.rounds)


def _gpu(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    yield "gpu", gpu.run(options.rounds)


def _attention(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    results = options.results or (PUBLISHED if options.write else RESULTS)
    return attention.run(
        attention.Settings(results, options.only, options.rounds, options.longest, options.measured)
    )


SECTIONS = {
    "bias": _bias,
    "gradient": _gradient,
    "bloom": _bloom,
    "gpu": _gpu,
    "attention": _attention,
}


def _parts(text: str) -> list[str]:
    """Return the names of the parts that begin with one of the comma-separated beginnings."""
    beginnings = text.split(",")
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in attention.PARTS):
            raise argparse.ArgumentTypeError(f"no part begins with {beginning!r}")
    return [name for name in attention.PARTS if name.startswith(tuple(beginnings))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    benchmarks = parser.add_subparsers(dest="benchmark", required=True)
    for name, rounds in (("bias", 7), ("gradient", 3), ("bloom", 3), ("gpu", 9), ("attention", 3)):
        benchmark = benchmarks.add_parser(name)
        benchmark.add_argument(
            "--rounds",
            type=int,
            default=rounds,
            help="turns of each candidate (default: %(default)s)",
        )
        benchmark.add_argument(
            "--write", action="store_true", help=f"write the tables into {DOCUMENT.name}"
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
        "--longest",
        type=int,
        default=32768,
        help="number of tokens above which problems are left out (default: %(default)s)",
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
