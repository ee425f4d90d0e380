"""Tables of commands as CSV, Markdown and LaTeX, and pictures as PDF."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi import _files
from ntk_alibi.cli import main
from ntk_alibi.evaluation.report import comparison_tables, study_tables, tuning_table
from ntk_alibi.evaluation.report.markdown import FORMATS, counted
from ntk_alibi.evaluation.report.tables import formatted
from pictures import summary

ROW: dict[str, Any] = {"method": "50 % of_it", "cases": 3, "value": 0.5, "low": 0.25}
ROW |= {"high": 0.75, "task": "t", "metric": "accuracy", "published": None}


def output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    main(arguments)
    return capsys.readouterr().out


def test_slopes_in_all_formats(capsys: pytest.CaptureFixture[str]) -> None:
    table = list(csv.reader(io.StringIO(output(["slopes", "4", "--format", "csv"], capsys))))
    assert table[0] == ["head", "slope", "tokens until the bias is -8"]
    slopes = [float(row[1]) for row in table[1:]]
    assert slopes == pytest.approx(na.alibi_slopes(4).tolist(), rel=1e-5)  # six digits are printed
    marked = output(["slopes", "4", "--format", "markdown"], capsys).splitlines()
    assert marked[2:] == ["| " + " | ".join(row) + " |" for row in table[1:]]
    latex = output(["slopes", "4", "--format", "latex"], capsys)
    assert [line for line in latex.splitlines() if line.endswith("\\\\")] == [
        " & ".join(row) + " \\\\" for row in table
    ]
    assert output(["slopes", "4", "--format", "json"], capsys) == output(
        ["slopes", "4", "--json"], capsys
    )


def test_info_in_all_formats(capsys: pytest.CaptureFixture[str]) -> None:
    for name in FORMATS:
        assert na.__version__ in output(["info", "--format", name], capsys)
    assert json.loads(output(["info", "--format", "json"], capsys)) == na.info()


@pytest.mark.parametrize("name", FORMATS)
def test_stored_studies_are_printed_in_a_format(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "study.json"
    study = summary()
    for entry in study["retrieval"]:
        entry |= {"gain": None, "gain_half_width": None}
    for entry in study["by_distance"]:
        entry |= {"cases": 64}
    study |= {"by_depth": [], "commands": {}}
    stored.write_text(json.dumps(study))
    plot = tmp_path / "study.pdf"
    found = output(
        ["eval", "--from-json", str(stored), "--plot", str(plot), "--format", name], capsys
    )
    assert plot.read_bytes().startswith(b"%PDF")
    for method in study["methods"]:
        assert method in found
    assert "pictures:" not in found


def test_special_characters_stay_what_they_are() -> None:
    (table,) = comparison_tables({"model": "m_1", "rows": [ROW]})
    assert r"50 \% of\_it & 3 & 50.0 (25.0--75.0) \\" in formatted(table, "latex")
    assert r"\caption{t, m\_1: 95 \% intervals}" in formatted(table, "latex")
    assert formatted(table, "csv").splitlines()[2] == "50 % of_it,3,50.0,25.0,75.0"
    candidate = {"method": "ntk:2", "accuracy": 0.5, "low": 0.4, "high": 0.6}
    candidate |= {"difference": 0.1, "half_width": 0.01, "best_share": 0.7}
    tuning = {"model": "m", "length": 8, "chosen": "ntk:2", "candidates": [candidate]}
    assert r"ntk:2 & 50 (40--60) & $+0.100\pm0.010$ & 70 \\" in formatted(
        tuning_table(tuning), "latex"
    )
    candidate |= {"difference": -0.1, "half_width": math.nan}
    assert r"ntk:2 & 50 (40--60) & $-0.100$ & 70 \\" in formatted(tuning_table(tuning), "latex")


def test_cells_of_csv_are_numbers() -> None:
    found = [study(1.5, 3.0), study(3000 / 2048, 3.0)]
    for table in (table for of_study in found for table in study_tables(of_study)):
        title, *lines = formatted(table, "csv").splitlines()
        assert title.startswith("# ")
        header, *rows = csv.reader(lines)
        assert len(set(header)) == len(header)
        for row in rows:
            assert all(math.isfinite(float(cell)) for cell in row[1:] if cell)
    header, row, *_ = csv.reader(formatted(study_tables(found[0])[0], "csv").splitlines()[1:])
    assert header == ["method", "1.5x", "1.5x, low", "1.5x, high", "3x", "3x, low", "3x, high"]
    assert row == ["original", "50", "25", "75", "50", "25", "75"]
    gains = list(csv.reader(formatted(study_tables(found[0])[1], "csv").splitlines()[1:]))
    assert gains[0][:3] == ["method", "1.5x", "1.5x, half-width"]
    assert gains[1][:3] == ["ntk:2", "-20", "5"]


def study(*multiples: float) -> dict[str, Any]:
    """Return a study of two methods at multiples of the training length."""
    of = {"task": "lines", "cases": 3, "accuracy": 0.5, "low": 0.25, "high": 0.75}
    of |= {"gain": -0.2, "gain_half_width": 0.05}
    ranges = [*zip((0.0, *multiples), multiples, strict=False)]
    entries = [of | {"method": m, "multiple": x} for m in ("original", "ntk:2") for x in multiples]
    by_distance = [of | {"method": "ntk:2", "begin": b, "end": e} for b, e in ranges]
    nats = {"method": "original", "nats": 2.5, "difference": 0.0, "half_width": math.nan}
    return {
        **{"train_length": 2048, "methods": ["original", "ntk:2"]},
        **{"retrieval": entries, "by_distance": by_distance, "by_depth": [], "commands": {}},
        "perplexity": [nats | {"begin": b, "end": e} for b, e in ranges],
    }


def test_headings_have_two_digits_where_they_tell_apart() -> None:
    lengths, _, distances, prose = study_tables(study(1000 / 2048, 3000 / 2048))
    assert lengths.header == ["method", "0.49x", "1.46x"]
    assert distances.header == ["method", "0–0.49", "0.49–1.46"]
    assert "nan" not in prose.title
    close = study_tables(study(3001 / 2048, 3002 / 2048))[0]
    assert close.header == ["method", "1.46533x", "1.46582x"]


def test_stored_numbers_without_an_interval_are_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "study.json"
    stored.write_text(_files.json_text(study(1.5)))
    assert (
        json.loads(stored.read_text(), parse_constant=pytest.fail)["perplexity"][0]["half_width"]
        is None
    )
    plot = str(tmp_path / "study.png")
    shown = output(["eval", "--from-json", str(stored), "--plot", plot], capsys)
    assert "2.500" in shown
    assert "nan" not in shown
    again = output(["eval", "--from-json", str(stored), "--plot", plot, "--json"], capsys)
    assert json.loads(again, parse_constant=pytest.fail)["perplexity"][0]["half_width"] is None


def test_a_number_of_one_has_no_plural() -> None:
    assert (counted(1, "thread"), counted(2, "thread")) == ("1 thread", "2 threads")
