"""Tables of commands as CSV, Markdown and LaTeX, and pictures as PDF."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi.cli import main
from ntk_alibi.evaluation.report import comparison_tables, tuning_table
from ntk_alibi.evaluation.report.formats import FORMATS
from ntk_alibi.evaluation.report.tables import formatted
from pictures import summary

ROW: dict[str, Any] = {"label": "NTK a=2, 50 % of_it", "cases": 3, "value": 0.5, "low": 0.25}
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
    for label in study["methods"].values():
        assert label in found
    assert "pictures:" not in found


def test_special_characters_stay_what_they_are() -> None:
    (table,) = comparison_tables({"model": "m_1", "rows": [ROW]})
    assert r"NTK a=2, 50 \% of\_it & 3 & 50.0 25.0-75.0 \\" in formatted(table, "latex")
    assert r"\caption{t, m\_1}" in formatted(table, "latex")
    assert formatted(table, "csv").splitlines()[2] == '"NTK a=2, 50 % of_it",3,50.0 25.0-75.0'
    candidate = {"method": "ntk:2", "label": "NTK a=2", "accuracy": 0.5, "low": 0.4, "high": 0.6}
    candidate |= {"difference": 0.1, "half_width": 0.01, "best_share": 0.7}
    tuning = {"model": "m", "length": 8, "chosen": "ntk:2", "candidates": [candidate]}
    assert r"NTK a=2 & 50 40-60 & +0.100 $\pm$0.010 & 70 \% \\" in formatted(
        tuning_table(tuning), "latex"
    )


def test_pictures_as_pdf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "slopes.pdf"
    output(["plot", "slopes", "8", "--output", str(path)], capsys)
    assert path.read_bytes().startswith(b"%PDF")
