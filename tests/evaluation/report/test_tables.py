"""Tables: a line for each method in the terminal's width, one form of intervals, three formats."""

from __future__ import annotations

import io
import math
from itertools import product

import pandas as pd
import pytest

from ntk_alibi.evaluation.comparing.summary import COLUMNS, Summary
from ntk_alibi.evaluation.report import html, study_tables
from ntk_alibi.evaluation.report.cells import with_ends, with_half_width
from ntk_alibi.evaluation.report.markdown import counted
from ntk_alibi.evaluation.report.tables import formatted, printed, study_rows, with_title

METHODS = (
    "original",
    "interpolation:4",
    "dynamic-interpolation:3:logn=0.5",
    "dynamic-interpolation:1.2345678901234:logn=0.123456789",
)


def study(*methods: str, multiples: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 4.0)) -> Summary:
    """Return a study whose figures have as many digits as they can."""
    of = {"task": "lines", "cases": 256, "accuracy": 1.0, "low": 0.94, "high": 1.0}
    of |= {"gain": -1.0, "gain_half_width": 0.12, "nats": 2.5, "difference": 0.01}
    of |= {"half_width": 0.044}
    begins = dict(zip(multiples, (0.0, *multiples), strict=False))
    rows = [
        of | {"method": method, "multiple": x, "begin": begins[x], "end": x}
        for method, x in product(methods, multiples)
    ]
    return Summary(2048, methods, **dict.fromkeys(COLUMNS, rows))


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_row_is_wrapped(width: int) -> None:
    for table in study_tables(study(*METHODS)):
        lines = printed(table, width).splitlines()
        assert max(map(len, lines)) <= width
        assert lines[:2] == ["", table.attrs["title"]]
        words = [line.split() for line in lines[2:] if line]
        assert {first for first, *_ in words} == {"method", *METHODS} & {*table["method"], "method"}
        for name, *cells in table.itertuples(index=False):
            found = [word for first, *others in words if first == name for word in others]
            assert found == " ".join(cells).split()


def test_a_table_that_fits_is_in_one_part() -> None:
    table = study_tables(study(*METHODS[:2]))[0]
    assert sum(line.startswith("method ") for line in printed(table, 90).splitlines()) == 1
    long = study_tables(study(*METHODS[:3]))[0]
    first, second = (x for x in printed(long, 80).splitlines() if x.startswith("method "))
    assert (first.split()[1:], second.split()[1:]) == (["1x", "1.5x", "2x"], ["3x", "4x"])
    assert sum(line.startswith("method ") for line in printed(long, 120).splitlines()) == 1


def test_headings_have_two_digits_where_they_tell_apart() -> None:
    lengths, _, distances, prose = study_tables(
        study("original", "ntk:2", multiples=(1000 / 2048, 3000 / 2048))
    )
    assert list(lengths) == ["method", "0.49x", "1.46x"]
    assert list(distances) == ["method", "0–0.49", "0.49–1.46"]
    assert prose.attrs["title"].endswith("rest minus original (95 %: up to ± 0.044)")
    close = study_tables(study("original", multiples=(3001 / 2048, 3002 / 2048)))[0]
    assert list(close) == ["method", "1.46533x", "1.46582x"]


def test_special_characters_are_kept() -> None:
    row = {"method": "50 % of_it", "cases": "3", "acc, %": "50.0 (25.0–75.0)"}
    table = with_title(pd.DataFrame([row]), "t, m_1: 95 % intervals")
    latex = formatted(table, "latex")
    assert r"50 \% of\_it & 3 & 50.0 (25.0–75.0) \\" in latex
    assert r"\caption{t, m\_1: 95 \% intervals}" in latex
    assert "<td>50 % of_it</td>" in html(table)
    assert "| 50 % of_it | 3 | 50.0 (25.0–75.0) |" in " ".join(formatted(table, "markdown").split())


def test_csv_has_the_exact_values() -> None:
    shown = study("original", "ntk:2")
    for table in study_rows(shown):
        title, text = formatted(table, "csv").split("\n", 1)
        again = pd.read_csv(io.StringIO(text))
        pd.testing.assert_frame_equal(
            again, getattr(shown, title.removeprefix("# ")), check_dtype=False
        )


def test_a_number_of_one_has_no_plural() -> None:
    assert (counted(1, "thread"), counted(2, "thread")) == ("1 thread", "2 threads")


def test_intervals_have_one_form() -> None:
    assert with_ends(71.4, 50.6, 90.2) == "71 (51–90)"
    assert with_ends(71.4, 50.6, 90.2, unit=" %") == "71 % (51–90)"
    assert with_ends(2.5, math.nan, math.nan, 3) == "2.500"
    assert with_ends(math.nan, math.nan, math.nan) == ""
    assert with_half_width(18.2, 4.9, 0) == "+18 ± 5"
    assert with_half_width(-0.2, 1.0, 0) == "+0 ± 1"


def test_no_interval_has_a_width_of_zero() -> None:
    for width in (0.0, 1e-17, 0.004, math.nan):
        assert with_half_width(80.0, width, 0) == "+80"
    assert with_half_width(80.04, 0.3, 0) == "+80.0 ± 0.3"
    assert with_ends(71.2, 70.9, 71.4) == "71.2 (70.9–71.4)"
    assert with_ends(100.0, 99.8, 100.0, unit=" %") == "100.0 % (99.8–100.0)"
    assert with_ends(50.0, 50.0, 50.0 + 1e-9) == "50"
    assert with_half_width(0.0002, 0.0004, 3) == "+0.0002 ± 0.0004"
