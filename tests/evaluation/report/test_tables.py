"""Printed tables: a line for each method in the terminal's width, and one form of intervals."""

from __future__ import annotations

import io
import math
from itertools import product
from typing import Any

import pytest
from rich.console import Console

from ntk_alibi.evaluation.report import study_tables, tuning_table
from ntk_alibi.evaluation.report.cells import with_ends, with_half_width
from ntk_alibi.evaluation.report.tables import ResultTable

METHODS = (
    "original",
    "interpolation:4",
    "dynamic-flat:2:query:logn=0.5",
    "dynamic-knee:1024:7:query:layers=0+1+2:logn=0.5",
)


def printed(table: ResultTable, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text().splitlines()


def study(*methods: str) -> dict[str, Any]:
    """Return a study at five lengths whose numbers are as long as they get."""
    of = {"task": "lines", "cases": 256, "accuracy": 1.0, "low": 0.94, "high": 1.0}
    of |= {"gain": -1.0, "gain_half_width": 0.12}
    pairs = list(product(methods, (1.0, 1.5, 2.0, 3.0, 4.0)))
    entries = [of | {"method": method, "multiple": multiple} for method, multiple in pairs]
    ranges = [of | {"method": method, "begin": x - 0.5, "end": x} for method, x in pairs]
    nats = {"nats": 2.5, "difference": 0.01, "half_width": 0.044}
    return {
        **{"train_length": 2048, "methods": list(methods), "retrieval": entries},
        **{"by_distance": ranges, "perplexity": [entry | nats for entry in ranges]},
    }


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_row_is_wrapped(width: int) -> None:
    entries = [
        {"method": method, "accuracy": 1.0, "low": 0.94, "high": 1.0, "best_share": 1.0}
        | {"difference": -1.234, "half_width": 0.123}
        for method in METHODS
    ]
    tuning = {"model": "nano BLOOM", "length": 8192, "chosen": "original", "candidates": entries}
    for table in [*study_tables(study(*METHODS)), tuning_table(tuning)]:
        lines = printed(table, width)
        assert max(map(len, lines)) <= width
        assert lines[:2] == ["", table.title]
        words = [line.split() for line in lines[2:] if line.strip(" ─")]
        found = {
            str(name): [cell for first, *cells in words if first == name for cell in cells]
            for name, *_ in table.rows
        }
        for name, *cells in table.rows:
            assert found[str(name)] == " ".join(map(str, cells)).split()
        assert {first for first, *_ in words} == {"method", *found}


def test_a_table_that_fits_is_in_one_part() -> None:
    table = study_tables(study(*METHODS[:2]))[0]
    assert sum(line.startswith("method ") for line in printed(table, 80)) == 1
    long = study_tables(study(*METHODS[:3]))[0]
    first, second = (line for line in printed(long, 80) if line.startswith("method "))
    assert (first.split()[1:], second.split()[1:]) == (["1x", "1.5x", "2x"], ["3x", "4x"])
    assert sum(line.startswith("method ") for line in printed(long, 120)) == 1


def test_intervals_have_one_form() -> None:
    assert str(with_ends(71.4, 50.6, 90.2)) == "71 (51–90)"
    assert str(with_ends(71.4, 50.6, 90.2, unit=" %")) == "71 % (51–90)"
    assert str(with_ends(2.5, math.nan, math.nan, 3)) == "2.500"
    assert str(with_half_width(18.2, 4.9, 0)) == "+18 ± 5"
    assert str(with_half_width(-0.2, 1.0, 0)) == "+0 ± 1"


def test_no_interval_has_a_width_of_zero() -> None:
    for width in (0.0, 1e-17, 0.004, math.nan):
        assert str(with_half_width(80.0, width, 0)) == "+80"
    assert str(with_half_width(80.04, 0.3, 0)) == "+80.0 ± 0.3"
    assert str(with_ends(71.2, 70.9, 71.4)) == "71.2 (70.9–71.4)"
    assert str(with_ends(100.0, 99.8, 100.0, unit=" %")) == "100.0 % (99.8–100.0)"
    assert str(with_ends(50.0, 50.0, 50.0 + 1e-9)) == "50"
    assert str(with_half_width(0.0002, 0.0004, 3)) == "+0.0002 ± 0.0004"
