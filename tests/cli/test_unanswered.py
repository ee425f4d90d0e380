"""What `eval` says of a model that does not know the task, such as a random BLOOM."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from ntk_alibi.cli import main
from ntk_alibi.evaluation.comparing import plan

pytestmark = pytest.mark.usefixtures("in_tmp")

SMALL = ["--train-length", "256", "--methods", "original", "ntk:2"]
AT_ITS_OWN = "of the questions of these records at its own training length (256 tokens)"


@pytest.fixture
def output(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return what `eval` prints to stdout and stderr."""
    records = ["--multiples", "1", "2", "--records", "1", "--prose-windows", "0"]
    main(["eval", "--model", str(tiny_checkpoint), *SMALL, *records])
    return capsys.readouterr()


def test_eval_says_so_and_stretches_nothing(output: tuple[str, str]) -> None:
    out, error = output
    (sentence,) = re.findall("^.*no method .*$", out, re.MULTILINE)
    assert sentence.startswith("The model answers 0 %")
    assert AT_ITS_OWN in sentence
    for promise in ("to stretch it", "patch("):
        assert promise not in out
    assert "ntk-alibi: warning: the model answers 0 %" in error  # before the longer records
    assert AT_ITS_OWN in error


def test_the_commands_that_it_names_run(
    output: tuple[str, str],
    tiny_checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of `eval`; the harness's names no task."""
    out = output[0].replace(os.sep, "/")
    commands = [shlex.split(x) for x in re.findall(r"^ +ntk-alibi (.*)$", out, re.MULTILINE)]
    named = [words for words in commands if words[0] == "eval"]
    prose, shorter = named
    for words in named:
        assert words[1:3] == ["--model", tiny_checkpoint.as_posix()]
    main([*prose, "--train-length", "256", "--multiples", "2", "--prose-windows", "1"])
    assert "prose: nats by position" in capsys.readouterr().out
    main([*shorter, *SMALL, "--passkey-records", "1", "--records", "1"])
    out = capsys.readouterr().out
    assert "passkey: accuracy" in out
    assert re.search(r"^method +0.25x +0.5x$", out, re.MULTILINE)
    (harness,) = (words for words in commands if "--apply_chat_template" in words)
    assert f"pretrained={tiny_checkpoint.as_posix()},method=original" in harness


def test_of_longer_records_alone_nothing_is_told_before_the_end(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original may know the task and yet answer nothing there."""
    few = {"multiples": (2, 4), "line_records": 1, "topic_records": 0, "prose_windows": 0}
    monkeypatch.setattr(plan, "QUICK", few)
    main(["eval", "--quick", "--model", str(tiny_checkpoint), *SMALL])
    out, error = capsys.readouterr()
    assert "answers" not in error
    assert "The model answers 0 %" in out


def test_prose_alone_asks_nothing(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = ["--multiples", "1", "--records", "0", "--prose-windows", "1"]
    main(["eval", "--model", str(tiny_checkpoint), *SMALL, *records])
    out, error = capsys.readouterr()
    assert "answers" not in out
    assert "warning" not in error
