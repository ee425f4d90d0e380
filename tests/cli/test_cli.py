"""Tests of the command line, with arguments as users type them."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi.cli import main
from ntk_alibi.evaluation.comparing import plan
from ntk_alibi.evaluation.comparing.plan import DEFAULT_METHODS
from ntk_alibi.methods import ADVICE, DYNAMIC, RECOMMENDED, STATIC, parse_method
from repository import ROOT


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    main(["info"])
    assert f"version       {na.__version__}" in capsys.readouterr().out
    main(["info", "--json"])
    assert json.loads(capsys.readouterr().out) == na.info()


def test_slopes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["slopes", "2", "--method", "ntk:4"])
    assert capsys.readouterr().out.splitlines() == [
        "head        slope  tokens until the bias is -8",
        "   1       0.0625                          128",
        "   2  0.000976562                         8192",
    ]
    main(["slopes", "12", "--method", "dynamic-ntk:1", "--length", "8192", "--json"])
    slopes = json.loads(capsys.readouterr().out)
    assert slopes == na.alibi_slopes(12, na.NTK(4.0)).tolist()


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    main(["methods", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"].partition(":")[0] for row in rows] == ["original", *STATIC, *DYNAMIC]
    for row in rows:
        assert parse_method(row["method"], None).scaling == eval(row["python"], {"na": na})
        assert row["description"].endswith(".")
    main(["methods"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-len(rows) :]] == [row["method"] for row in rows]


@pytest.mark.parametrize("option", ["--method", "--methods"])
def test_method_and_methods_are_one_option(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    commands = {
        "slopes": ["slopes", "2"], "bench": ["bench"], "export": ["export", "-o", "x.gguf"],
        "evaluate": ["eval"],
    }  # fmt: skip
    for module, words in commands.items():
        monkeypatch.setattr(f"ntk_alibi.cli.{module}._run", taken.append)
        main([*words, option, "ntk:4"])
    chosen = [getattr(x, "method", None) or x.methods for x in taken]
    assert chosen == ["ntk:4"] * 3 + [["ntk:4"]]
    main(["eval", option, "original", "ntk:2", option, "ntk:4"])
    assert taken[-1].methods == ["original", "ntk:2", "ntk:4"]


COMMANDS = "demo info methods slopes eval lm-eval export bench notebooks".split()


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_has_an_example_and_fits_a_terminal(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        main([*command, "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    commands = text.partition("example:\n")[2].replace("\\\n", "").splitlines()
    assert all(line.startswith(("  ntk-alibi ", "  llama-cli ")) for line in commands)
    assert not command or f"example:\n  ntk-alibi {' '.join(command)}" in text


def test_the_advice_is_the_same_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/choose-a-method.md").read_text("utf-8")
    assert f"**Take `{RECOMMENDED}`.**" in page
    assert ADVICE.startswith(f"{RECOMMENDED};")
    table = re.findall(r"^\| (`[^|]*) \| (\d) . text length[^|]* \| (\d) \|$", page, re.MULTILINE)
    recommended = {
        kind: values for kinds, *values in table for kind in re.findall("`(.*?)`", kinds)
    }
    factor, rate = recommended["flat"]
    assert recommended["ntk"] == [factor, rate]
    of_interpolation = recommended["interpolation"][0]
    assert recommended["interpolation"] == [of_interpolation, rate]
    with contextlib.suppress(SystemExit):
        main(["methods", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ADVICE in text
    lengths = "x text length / training length"
    assert f"FACTOR is {factor} {lengths}; interpolation {of_interpolation} x" in text
    assert f"RATE is {rate} if it is left out" in text
    main(["methods"])
    assert capsys.readouterr().out.startswith(f"recommended: {ADVICE}.\n")
    assert f'na.patch(model, "{RECOMMENDED}")' in (ROOT / "README.md").read_text("utf-8")
    assert RECOMMENDED in DEFAULT_METHODS


def test_eval(
    tiny_checkpoint: Path,
    in_tmp: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = {"multiples": (1,), "line_records": 1, "topic_records": 1, "prose_windows": 0}
    monkeypatch.setattr(plan, "QUICK", quick)
    arguments = ["eval", "--quick", "--model", str(tiny_checkpoint), "--train-length", "256"]
    main([*arguments, "--methods", "original", "ntk:2"])
    out = capsys.readouterr().out
    assert "lines: accuracy" in out
    assert "ntk:2" in out
    assert "pictures: none; --pictures DIR draws them\n" in out
    assert "The model answers 0 % of the questions of these records" in out
    assert not list(in_tmp.iterdir())
    main([*arguments, "--json", "--pictures", "drawn", "--output", "all"])
    text = capsys.readouterr().out
    summary = json.loads(text)
    assert summary["train_length"] == 256
    assert list(summary["methods"]) == list(DEFAULT_METHODS)
    assert {path.name for path in in_tmp.iterdir()} == {"drawn", "all"}
    assert {path.name for path in (in_tmp / "drawn").iterdir()} == {"study.png", "depth.png"}
    (in_tmp / "again.json").write_text(text)
    main(["eval", "--from-json", "again.json"])
    assert "lines: accuracy" in capsys.readouterr().out
