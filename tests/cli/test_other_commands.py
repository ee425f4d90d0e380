"""Commands that copy notebooks, and time attention."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from runpy import run_module

import numpy as np
import pytest

import ntk_alibi as na
from ntk_alibi.cli import bench, main
from repository import ROOT


def test_notebooks_are_copied_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["notebooks", str(tmp_path)])
    count = len(list((ROOT / "notebooks").glob("*.ipynb"))) + 1
    out = capsys.readouterr().out
    assert f"{count} files copied, 0 were there" in out
    assert f"open them by: jupyter lab {tmp_path / 'notebooks'}\n" in out
    copies = sorted((tmp_path / "notebooks").glob("*.ipynb"))
    assert [path.name for path in copies] == [
        path.name for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    ]
    assert (tmp_path / "docs/pictures/extrapolation.json").exists()  # what the seventh reads
    assert not [
        path for path in copies if "](../docs" in path.read_text("utf-8")
    ]  # pages stay behind
    copies[0].write_text("mine")
    main(["notebooks", str(tmp_path)])
    assert f"0 files copied, {count} were there" in capsys.readouterr().out
    assert copies[0].read_text() == "mine"


def test_copies_of_the_wheel_have_no_outputs(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("bare", ROOT / "notebooks/without_outputs.py")
    assert spec is not None
    assert spec.loader is not None
    bare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bare)
    bare.main(tmp_path)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        kept = json.loads(path.read_text("utf-8"))["cells"]
        cells = json.loads((tmp_path / "notebooks" / path.name).read_text("utf-8"))["cells"]
        assert [cell["source"] for cell in cells] == [cell["source"] for cell in kept]
        assert not any(cell.get("outputs") for cell in cells)


def test_python_m_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["slopes", "4"])
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["ntk_alibi", "slopes", "4"])
    run_module("ntk_alibi", alter_sys=True)
    assert capsys.readouterr().out == expected != ""


def test_bench_times_every_way(
    one_thread: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "SECONDS_PER_TURN", 0.0)
    monkeypatch.setattr("ntk_alibi.cli.timing.REST", 0.0)
    arguments = ["bench", "--lengths", "64", "200", "--heads", "2", "--rounds", "1"]
    main([*arguments, "--method", "ntk:4", "--json"])
    table = json.loads(capsys.readouterr().out)
    ways = [row["way"] for row in table["rows"] if row["tokens"] == 200]
    assert ways == [
        "ntk_alibi", "ntk_alibi, every block", "NumPy, all pairs", "torch SDPA, no bias",
        "torch SDPA, bias of all pairs",
    ]  # fmt: skip
    assert all(row["milliseconds"] > 0 for row in table["rows"])
    first = table["rows"][0]
    assert (first["ratio"], first["tokens"]) == (1, 64)
    assert 0 < first["blocks_read_percent"] <= 100
    main(["bench", "--lengths", "64", *arguments[4:]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(table["machine"].rpartition(";")[2])
    assert [line.split()[0] for line in lines[-6:]] == ["tokens"] + ["64"] * 5


def test_the_ways_of_bench_compute_the_same() -> None:
    rows = np.random.default_rng(0).standard_normal((3, 1, 2, 50, 8)).astype(np.float32)
    bias = na.ALiBi(2)
    expected = na.attention(*rows, bias)
    dense = bias.tensor(50, 50)
    ways = {"NumPy": bench.with_numpy(rows, dense), **bench.with_torch(rows, dense)}
    for name, attend in ways.items():
        if name != "torch SDPA, no bias":
            np.testing.assert_allclose(np.asarray(attend()), expected, atol=2e-6, err_msg=name)
