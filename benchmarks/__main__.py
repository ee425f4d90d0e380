"""One entry: `python -m benchmarks bias` or `attention`."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import attention, bias, document

BENCHMARKS = {"attention": attention.run, "bias": bias.run}
DOCUMENT = Path(__file__).parents[1] / "docs/benchmarks.md"


def main() -> None:
    """Run a benchmark, print its tables, put them into the document if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=sorted(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=7, help="repetitions (%(default)s)")
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.name}")
    options = parser.parse_args()
    text = BENCHMARKS[options.benchmark](options.rounds)
    print(text)
    if options.write:
        document.replace_section(DOCUMENT, options.benchmark, text)


if __name__ == "__main__":
    main()
