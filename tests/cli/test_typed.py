"""Tests of typed command lines: lengths and records, completion, mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commands import error_of
from ntk_alibi.cli import main

COMMAND = [sys.executable, "-m", "ntk_alibi"]

COMMANDS = [["info"], ["slopes"], ["eval"]]

pytestmark = [pytest.mark.usefixtures("in_tmp"), pytest.mark.slow]


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
        if unit and unit[1] != "method":
            assert unit[2].lower().replace("_", "-") != unit[1], f"no unit: {option}"


@pytest.mark.parametrize("command", [["slopes"], ["eval"]])
def test_help_explains_methods(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(command, capsys)
    assert "dynamic-ntk" in text
    assert "one factor for each text" in text


def test_eval_takes_lengths_and_records(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", "--model", str(tiny_checkpoint), "--train-length", "256", "--json"]
    arguments += ["--methods", "original", "--prose-windows", "0", "--records", "1", "--seed", "3"]
    main([*arguments, "--lengths", "300", "513"])
    lengths = json.loads(capsys.readouterr().out)
    main([*arguments, "--multiples", str(300 / 256), str(513 / 256)])
    assert json.loads(capsys.readouterr().out) == lengths
    found = {entry["multiple"] for entry in lengths["retrieval"]}
    assert sorted(round(256 * x) for x in found) == [300, 513]


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["bogus"], ["slopes"], ["slopes", "eight"], ["slopes", "8", "--length", "1e3"],
        ["slopes", "8", "--lenght", "3"], ["plot"], ["eval", "--methods"],
        ["eval", "--lengths"], ["eval", "--lengths", "x"], ["eval", "--tasks", "piqa"],
        ["eval", "--json", "--format", "csv"],
        ["eval", "--lengths", "9", "--multiples", "1"],
        ["eval", "--records", "1", "--line-records", "2"],
    ],
)  # fmt: skip
def test_wrong_words_end_with_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(arguments, capsys)
    assert error.startswith("usage: ntk-alibi")
    assert ": error: " in error.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["info"]])  # argparse prints, and we do
def test_a_closed_output_is_no_traceback(arguments: list[str]) -> None:
    if os.name != "nt":
        shell = ["sh", "-c", 'exec "$@" >&-', "sh"]
        done = subprocess.run([*shell, *COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
        assert "Traceback" not in done.stderr
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


def test_signs_that_the_output_lacks_are_replaced() -> None:
    """As in a code page of Windows, for one French letter of an example."""
    done = subprocess.run(
        [*COMMAND, "export", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Il ?tait une fois" in done.stdout


def test_an_interrupted_run_is_one_sentence(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives while the model answers; Python prints the exit's text to stderr."""
    monkeypatch.setattr(
        "ntk_alibi.evaluation.records.record.answered",
        lambda *_: signal.raise_signal(signal.SIGINT),
    )
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
    assert {"info", "slopes", "eval"} <= set(completions("ntk-alibi "))
    assert "--lengths" in completions("ntk-alibi eval --le")
    assert completions("ntk-alibi eval --methods dynamic-n") == ["dynamic-ntk", "dynamic-ntk:"]
