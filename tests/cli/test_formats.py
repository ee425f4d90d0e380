"""What commands print as CSV, Markdown, LaTeX and JSON, and pictures as PDF."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi import _files
from ntk_alibi.cli import main
from pictures import summary
from refusals import error_of

FORMATS = ("csv", "markdown", "latex")


def output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    main(arguments)
    return capsys.readouterr().out


def stored_study(path: Path, **changes: Any) -> str:
    """Store a study as `eval --json` prints it, and return the path."""
    study = summary()
    for entry in study["retrieval"]:
        entry |= {"gain": None, "gain_half_width": None}
    for entry in study["by_distance"]:
        entry |= {"cases": 64}
    path.write_text(_files.json_text(study | {"by_depth": [], "commands": {}} | changes))
    return str(path)


def test_slopes_in_all_formats(capsys: pytest.CaptureFixture[str]) -> None:
    table = list(csv.reader(io.StringIO(output(["slopes", "4", "--format", "csv"], capsys))))
    assert table[0] == ["head", "slope", "tokens until the bias is -8"]
    slopes = [float(row[1]) for row in table[1:]]
    assert slopes == pytest.approx(na.alibi_slopes(4).tolist(), rel=1e-5)  # six digits are printed
    marked = output(["slopes", "4", "--format", "markdown"], capsys).splitlines()
    assert [line.strip("| ").split() for line in marked[2:]] == [
        " | ".join(x).split() for x in table[1:]
    ]
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


def test_a_format_without_pandas_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = output(["slopes", "4"], capsys)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert output(["slopes", "4"], capsys) == expected
    error = error_of(["slopes", "4", "--format", "csv"], capsys)
    assert error == "ntk-alibi: error: --format csv needs pandas: pip install 'ntk-alibi[eval]'\n"


@pytest.mark.parametrize("name", FORMATS)
def test_stored_studies_are_printed_in_a_format(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, plot = stored_study(tmp_path / "study.json"), tmp_path / "study.pdf"
    found = output(["eval", "--from-json", stored, "--plot", str(plot), "--format", name], capsys)
    assert plot.read_bytes().startswith(b"%PDF")
    for method in summary()["methods"]:
        assert method in found
    assert "pictures:" not in found


def test_stored_values_without_an_interval_are_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats = [{**entry, "half_width": None} for entry in summary()["perplexity"]]
    stored = stored_study(tmp_path / "study.json", perplexity=nats)
    plot = str(tmp_path / "study.png")
    shown = output(["eval", "--from-json", stored, "--plot", plot], capsys)
    assert "2.700" in shown
    assert "nan" not in shown
    again = output(["eval", "--from-json", stored, "--plot", plot, "--json"], capsys)
    found = json.loads(again, parse_constant=pytest.fail)
    assert found == json.loads(Path(stored).read_text())
