"""Tests of typed command lines: short options, lengths and records, completion, mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ntk_alibi.cli import main
from ntk_alibi.cli.plot import PICTURES
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.harness.model import StretchedLM
from refusals import assert_one_sentence, error_of

COMMAND = [sys.executable, "-m", "ntk_alibi.cli"]

COMMANDS = [["info"], ["slopes"], ["eval"], ["tune"], *(["plot", name] for name in PICTURES)]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("x")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    return tmp_path


def help_of(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_says_what_each_option_is(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(command, capsys).partition("options:")[2].partition("\n\nmethods:")[0]
    options = re.findall(r"^  (-.*(?:\n {10,}.*)*)", text, re.MULTILINE)
    assert len(options) > 1
    for option in options:
        name, _, what = option.partition("  ")
        assert what.strip(), f"no help: {option}"
        unit = re.fullmatch(r".*--([a-z-]+) ([A-Z_]+)( .*)?", name)
        if unit and unit[1] not in ("method", "title", "section"):
            assert unit[2].lower().replace("_", "-") != unit[1], f"no unit: {option}"


@pytest.mark.parametrize("command", [["slopes"], ["eval"], ["tune"], ["plot", "field"]])
def test_help_recommends_methods_per_query(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(command, capsys)
    assert "dynamic-ntk:2:query" in text
    assert "query for dynamic methods, recommended" in text
    assert not re.search(r"dynamic-ntk:[0-9.]+(?!:query)\b(?!:)", text)


def test_eval_takes_lengths_and_records(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", "--model", str(tiny_checkpoint), "--train-length", "256", "--json"]
    arguments += ["--methods", "original", "--prose-windows", "0", "--records", "1", "--seed", "3"]
    main([*arguments, "--lengths", "300", "513"])
    lengths = json.loads(capsys.readouterr().out)
    main([*arguments, "--multiples", str(300 / 256), str(513 / 256)])
    assert json.loads(capsys.readouterr().out) == lengths
    cells = lengths["commands"]["original"]
    assert set(cells) == {f"{task}/{n}" for task in ("lines", "topics") for n in (300, 513)}
    for command in cells.values():
        assert '"records": 1,' in command
        assert '"seed": 3}' in command
    found = {entry["multiple"] for entry in lengths["retrieval"]}
    assert sorted(round(256 * x) for x in found) == [300, 513]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "--lengths", "0"], "--lengths must be between 1"),
        (["eval", "--lengths", "9", "--multiples", "1"], "--multiples must not be given with --le"),
        (["eval", "--records", "-1"], "--records must be between 0"),
        (["eval", "--records", "1", "--line-records", "2"], "--line-records must not be given"),
        (["eval", "--records", "0", "--prose-windows", "0"], "must be at least 1, got 0"),
        (["eval", "--max-length", "9"], "--tasks must be given with --max-length"),
        (["eval", "--batch-size", "4"], "--tasks must be given with --batch-size"),
        (["eval", "--tasks", "x", "--lengths", "9"], "--lengths must not be given with --tasks"),
        (["eval", "--tasks", "x", "--quick"], "--quick must not be given with --tasks"),
        (["eval", "--from-json", "text", "--methods", "ntk:2"], "--methods must not be given with"),
        (["eval", "--from-json", "folder"], "got 'folder': Is a directory"),
        (["eval", "--from-json", "bytes"], "'bytes' must be a JSON file"),
        (["eval", "--methods", "ntk"], "--methods: method must be original or one of"),
        (["eval", "--methods", "NTK:4"], "did you mean ntk:FACTOR?"),
        (["eval", "--methods", "ntk:0.5"], "--methods: factor must be a finite number >= 1"),
        (["eval", "--methods", ""], "--methods: method must be"),
        (["eval", "--multiples", "nan"], "--multiples must be a finite number > 0"),
        (["eval", "--document", "folder"], "got 'folder': Is a directory"),
        (["eval", "--output", "text"], "got 'text': File exists"),
        (["eval", "--tasks", "x", "--plot", "p.png"], "--plot must not be given with --tasks"),
        (["eval", "--tasks", "x", "--section", "s"], "--document must be given with --section"),
        (["eval", "--quick", "--section", "foo"], "--document must be given with --section, got"),
        (
            ["eval", "--tasks", "ntk_alibi_lines", "--metadata", '{"foo": 1}'],
            "--metadata: metadata of these tasks must have keys of lengths, records, seed, split, ",
        ),
        (
            ["tune", "--length", "64", "--methods", "ntk:2", "--budget", "3"],
            "--budget must not be given with --methods",
        ),
        (["slopes", "8", "--method", "ntk:2", "--length", "9"], "--length must be given with a dy"),
        (["plot", "field", "8", "--length", "9"], "--length must be given with a dynamic method"),
        (["slopes", "8", "--method", "knee:8:2"], "--method: scaling must act on slopes here"),
        (["plot", "slopes", "8", "--methods", "knee:8:2"], "--methods: scaling must act on slopes"),
        (["plot", "slopes", "8", "--methods", "original:logn=1"], "--methods: a method must be a"),
        (["eval", "--plot", "folder"], "the ending of --plot must be one of"),
        (["eval", "--model", "text"], "--model: model must be a folder with config.json"),
        (["tune", "--length", "64", "--methods", "flat"], "did you mean flat:FACTOR?"),
        (["tune", "--length", "64", "--windows", "0"], "--windows must be between 1"),
        (["slopes", "8", "--method", "ntk:nan"], "--method: factor must be a finite number"),
        (["slopes", "8", "--method", "dynamic-ntk:2"], "--length: lengths must be given"),
        (["slopes", "-8"], "num_heads must be between 1"),
        (["plot", "bias", "8", "--queries", "0"], "--queries: query_length must be between 1"),
        (["plot", "bias", "8", "--keys", "-1"], "--keys: key_length must be between 1"),
        (["plot", "bias", "8", "--heads", "0"], "--heads: heads must be between 1 and 8"),
        (["plot", "field", "8", "--shares", "nan"], "--shares: share must be a finite number"),
        (["plot", "mask", "--window", "-1"], "--window: window must be between 1"),
        (["plot", "mask", "--causal-block", "0"], "--causal-block: causal_block must be between 1"),
        (["plot", "slopes", "8", "-o", "folder"], "the ending of --output must be one of"),
        (["plot", "slopes", "8", "-o", "text/p.png"], "got 'text/p.png': Not a directory"),
        (["plot", "precision", "--slope", "nan"], "--slope: slope must be a finite number"),
    ],
)
def test_messages_name_the_option(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert_one_sentence(arguments, message, capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["bogus"], ["slopes"], ["slopes", "eight"], ["slopes", "8", "--length", "1e3"],
        ["slopes", "8", "--lenght", "3"], ["plot"], ["plot", "bogus"], ["eval", "--methods"],
        ["eval", "--lengths"], ["eval", "--lengths", "x"], ["tune"], ["slopes", "8", "--rule", "x"],
        ["eval", "--metadata", "{"], ["slopes", "8", "--json", "--format", "csv"],
        ["info", "--format", "markdown", "--json"],
    ],
)  # fmt: skip
def test_wrong_words_end_with_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(arguments, capsys)
    assert error.startswith("usage: ntk-alibi")
    assert ": error: " in error.splitlines()[-1]


@pytest.mark.parametrize("command", ["slopes", "field"])
def test_short_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plot", command, "4", "-o", "p.svg"])
    assert Path("p.svg").read_bytes().startswith(b"<?xml")
    assert capsys.readouterr().out == "picture: p.svg\n"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"train_length": 0}, ValueError, "train_length must be between 1"),
        ({"methods": ()}, ValueError, r"methods must hold at least one, got \(\)"),
        ({"methods": "ntk:2"}, ValueError, "methods must hold at least one, got 'ntk:2'"),
        ({"methods": ("nkt:2",)}, ValueError, "method must be original or one of"),
        ({"multiples": ()}, ValueError, "multiples must hold at least one"),
        ({"multiples": (0.0,)}, ValueError, "multiples must be a finite number > 0"),
        ({"multiples": ("1",)}, TypeError, "multiples must be a number"),
        ({"line_records": -1}, ValueError, "line_records must be between 0"),
        ({"prose_windows": 1.5}, TypeError, "prose_windows must be an integer"),
        ({"line_questions": 0}, ValueError, "line_questions must be between 1"),
        ({"seed": -1}, ValueError, "seed must be between 0"),
    ],
)
def test_a_plan_is_checked_when_it_is_made(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        Plan(**{"train_length": 2048, **options})


@pytest.mark.parametrize("arguments", [["--help"], ["info"]])  # argparse prints, and we do
def test_a_closed_output_is_no_traceback(arguments: list[str]) -> None:
    shell = 'exec "$@" >&-'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *COMMAND, *arguments], stderr=subprocess.PIPE, text=True
    )
    assert "Traceback" not in done.stderr
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


def test_an_interrupted_run_is_one_sentence(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives while the model answers; Python prints the exit's text to stderr."""
    monkeypatch.setattr(StretchedLM, "_read", lambda *_: signal.raise_signal(signal.SIGINT))
    # A shell lets the jobs that it puts into the background ignore the signal.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit, match="interrupted; run the same command again to continue"):
            main(
                [
                    *("eval", "--model", str(tiny_checkpoint), "--train-length", "256"),
                    *("--prose-windows", "0", "--records", "1", "--methods", "original"),
                ]
            )
    finally:
        signal.signal(signal.SIGINT, ignored)
    assert Path(".ntk-alibi-eval.unfinished").exists()


def completions(line: str) -> list[str]:
    """Return what argcomplete offers for a command line, as bash asks it."""
    pytest.importorskip("argcomplete")
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "|", "COMP_LINE": line,
        "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE_STDOUT_FILENAME": "found",
    }  # fmt: skip
    subprocess.run(COMMAND, env={**os.environ, **asked}, check=False, capture_output=True)
    return Path("found").read_text().replace(" ", "").split("|")


def test_completion() -> None:
    assert {"info", "slopes", "plot", "eval", "tune"} <= set(completions("ntk-alibi "))
    assert "--lengths" in completions("ntk-alibi eval --le")
    assert completions("ntk-alibi eval --methods dynamic-n") == ["dynamic-ntk:"]
