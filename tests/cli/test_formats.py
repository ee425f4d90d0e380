"""What a study is printed as: CSV, Markdown, LaTeX and JSON, and its picture."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ntk_alibi.cli import main
from pictures import summary


def output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    main(arguments)
    return capsys.readouterr().out


def stored_study(path: Path, **changes: Any) -> str:
    """Store a study as `eval --json` prints it, and return the path."""
    path.write_text(replace(summary(), **changes).to_json())
    return str(path)


@pytest.mark.parametrize("name", ["csv", "markdown", "latex"])
def test_stored_studies_are_printed_in_a_format(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, pictures = stored_study(tmp_path / "study.json"), tmp_path / "pictures"
    command = ["eval", "--from-json", stored, "--pictures", str(pictures), "--format", name]
    found = output(command, capsys)
    assert (pictures / "study.png").read_bytes().startswith(b"\x89PNG")
    for method in summary().methods:
        assert method in found
    assert "pictures:" not in found


def test_stored_values_without_an_interval_are_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats = summary().perplexity.assign(half_width=math.nan)
    stored = stored_study(tmp_path / "study.json", perplexity=nats)
    shown = output(["eval", "--from-json", stored], capsys)
    assert "2.700" in shown
    assert "nan" not in shown
    again = output(["eval", "--from-json", stored, "--json"], capsys)
    found = json.loads(again, parse_constant=pytest.fail)
    assert found == json.loads(Path(stored).read_text())
