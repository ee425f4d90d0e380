"""Tests of the command line, with arguments as users type them."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi.cli import main
from ntk_alibi.evaluation.comparing import plan, tuning
from ntk_alibi.evaluation.comparing.plan import DEFAULT_METHODS
from ntk_alibi.methods import ADVICE, DYNAMIC, RECOMMENDED, STATIC, parse_method
from ntk_alibi.models import load, nano_bloom_path
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
    main(["slopes", "12", "--method", "dynamic-ntk:1:query", "--length", "8192", "--json"])
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
        "evaluate": ["eval"], "tune": ["tune", "--length", "9"],
        "explore": ["explore", "--text", "x"],
    }  # fmt: skip
    for module, words in commands.items():
        monkeypatch.setattr(f"ntk_alibi.cli.{module}._run", taken.append)
        main([*words, option, "ntk:4"])
    chosen = [getattr(x, "method", None) or x.methods for x in taken]
    assert chosen == ["ntk:4"] * 3 + [["ntk:4"]] * 3
    main(["eval", option, "original", "ntk:2", option, "ntk:4"])
    assert taken[-1].methods == ["original", "ntk:2", "ntk:4"]


COMMANDS = "info methods slopes explore eval tune lm-eval export bench notebooks".split()


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
    of_interpolation, of_knee = recommended["interpolation"][0], recommended["knee"][0]
    assert recommended["interpolation"] == [of_interpolation] * 2
    assert recommended["knee"] == [of_knee] * 2
    with contextlib.suppress(SystemExit):
        main(["methods", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ADVICE in text
    lengths = "x text length / training length"
    assert (
        f"FACTOR is {factor} {lengths}; interpolation {of_interpolation} x; knee {of_knee} x"
        in text
    )
    assert (
        f"RATE is {rate}, for dynamic-interpolation {of_interpolation}, for dynamic-knee {of_knee}"
        in text
    )
    main(["methods"])
    assert capsys.readouterr().out.startswith(f"recommended: {ADVICE}.\n")
    assert f'na.patch(model, "{RECOMMENDED}")' in (ROOT / "README.md").read_text("utf-8")
    assert RECOMMENDED in DEFAULT_METHODS


@pytest.mark.slow  # needs the evaluation harness
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
    pictures = ", ".join(str(in_tmp / f"ntk-alibi-eval{part}.png") for part in ("", "-depth"))
    assert f"pictures: {pictures}\n" in out
    assert "ntk-alibi lm-eval --model ntk_alibi" in out
    assert "The model answers 0 % of the questions of these records" in out
    drawn = {"ntk-alibi-eval.png", "ntk-alibi-eval-depth.png"}
    assert {path.name for path in in_tmp.iterdir()} == drawn
    main([*arguments, "--json", "--plot", "p.svg", "--output", "all"])
    text = capsys.readouterr().out
    summary = json.loads(text)
    assert summary["train_length"] == 256
    assert list(summary["methods"]) == list(DEFAULT_METHODS)
    assert {path.name for path in in_tmp.iterdir()} >= {"p.svg", "p-depth.svg", "all"}
    (in_tmp / "again.json").write_text(text)
    main(["eval", "--from-json", "again.json", "--plot", "again.svg"])
    assert "lines: accuracy" in capsys.readouterr().out
    assert (in_tmp / "again.svg").exists()


@pytest.mark.slow  # needs the evaluation harness
def test_the_next_command_of_the_demo_runs(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"multiples": (1, 4), "line_records": (1, 2), "topic_records": 0, "prose_windows": 0}
    monkeypatch.setattr(plan, "DEMO", small)
    monkeypatch.setattr(plan, "QUICK", small)
    main(["eval", "--demo", "--methods", "original", "dynamic-flat:2:query"])
    out = capsys.readouterr().out
    assert "1x = 2048 tokens; 32 to 64 cases" in out
    (command,) = re.findall("^  ntk-alibi (eval .*)$", out, re.MULTILINE)
    (method,) = re.findall(r"^  ntk_alibi.patch\(model, \"(.*)\"\)$", out, re.MULTILINE)
    assert method == "dynamic-flat:2:query"
    main(shlex.split(command.replace("MODEL", nano_bloom_path().as_posix())))
    out = capsys.readouterr().out
    assert f'ntk_alibi.patch(model, "{method}")' in out
    assert "to measure your model" not in out  # who names a model has measured it
    na.patch(load()[0], method).undo()


@pytest.mark.slow  # needs the evaluation harness
def test_eval_of_a_plan_writes_a_document(
    tiny_checkpoint: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = in_tmp / "page.md"
    arguments = ["eval", "--model", str(tiny_checkpoint), "--train-length", "256"]
    arguments += ["--methods", "ntk:2", "original:logn=1", "--multiples", "1", "2"]
    arguments += ["--line-records", "2", "--topic-records", "0", "--prose-windows", "0"]
    arguments += ["--seed", "5", "--document", "page.md", "--section", "far"]
    page.write_text("text\n")
    with pytest.raises(SystemExit):
        main(arguments)
    assert "page.md must hold the markers <!-- far: begin -->" in capsys.readouterr().err
    page.write_text("before\n<!-- far: begin -->\nold\n<!-- far: end -->\nafter\n")
    main(arguments)
    text = page.read_text("utf-8")
    assert text.startswith("before\n<!-- far: begin -->\n")
    assert text.endswith("\n<!-- far: end -->\nafter\n")
    assert "old" not in text
    assert "    ntk-alibi eval --model " in text
    assert "| original:logn=1 |" in text
    assert "topics" not in text
    with pytest.raises(SystemExit):
        main([*arguments, "--line-records", "0"])
    assert "must be at least 1" in capsys.readouterr().err


@pytest.mark.slow  # needs the evaluation harness
def test_tune(
    tiny_checkpoint: Path,
    in_tmp: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = [
        *("tune", "--model", str(tiny_checkpoint), "--length", "512", "--train-length", "256"),
        *("--methods", "ntk:2", "--records", "2", "--windows", "2"),
    ]
    main(arguments)
    out, error = capsys.readouterr()
    assert "no method can help where it does not know the task.\nmeasure instead:" in out
    assert "within the training length" not in error
    assert re.search(r"chosen from 2 methods: \S+ \(chosen in \d+ % of resamplings\)", out)
    assert "on held-out records, original" in out
    main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [entry["method"] for entry in found["candidates"]] == ["original", "ntk:2"]
    assert not list(in_tmp.iterdir())
    monkeypatch.setattr(tuning, "families", lambda *_: ("original", "ntk:2"))
    main([*arguments[:7], "--records", "2", "--windows", "1", "--budget", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    stages = [entry["stage"] for entry in found["trace"]]
    assert set(stages) == {"families", "refinements", "finalists"}
    assert stages.count("families") == stages.count("refinements") == 2
    scaling = na.scaling_from_config(found["config"]["alibi_scaling"])
    assert scaling == parse_method(found["answer"], 256).scaling
    assert found["answer"] == "original"  # nothing stretches a model that was not trained
    against = [entry["against"] for entry in found["paired"]]
    assert (against[:1] == ["original"]) == (found["chosen"] != "original")
    assert found["chosen"] not in against


@pytest.mark.slow  # needs the evaluation harness
def test_tune_warns_that_a_length_is_within_the_training_length(
    tiny_checkpoint: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ["--length", "256", "--train-length", "256"]
    small = ["--methods", "ntk:2", "--records", "1", "--windows", "1", "--json"]
    main(["tune", "--model", str(tiny_checkpoint), *lengths, *small])
    assert capsys.readouterr().err.startswith(
        "ntk-alibi: warning: --length 256 is within the training length of 256 tokens, which the "
        "model reads without stretching\n"
    )


@pytest.mark.slow  # needs the evaluation harness
def test_tune_warns_of_a_contradicted_choice_and_prints_no_nan(
    tiny_checkpoint: Path,
    in_tmp: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = tuning.search

    def contradicted(*given: Any, **named: Any) -> Any:
        found = search(*given, **named)
        changed = {"gain": -0.5, "gain_half_width": 0.1, "nats_half_width": math.nan}
        return replace(found, paired=found.paired.assign(**changed))

    monkeypatch.setattr(tuning, "search", contradicted)
    arguments = [
        *("tune", "--model", str(tiny_checkpoint), "--length", "512", "--train-length", "256"),
        *("--methods", "ntk:2", "--records", "1", "--windows", "1"),
    ]
    main(arguments)
    out = capsys.readouterr().out
    assert "warning: on held-out records " in out
    assert "they contradict the choice" in out
    assert "nan" not in out
    main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["candidates"][0]["half_width"] is None
