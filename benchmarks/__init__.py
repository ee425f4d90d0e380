"""Benchmarks against other libraries: `python -m benchmarks --help`."""

from pathlib import Path

ROOT = Path(__file__).parents[1]

#: The file whose sections hold the tables.
DOCUMENT = ROOT / "benchmarks/results/tables.md"
