"""What `eval` says of a model that does not know the task, such as a random BLOOM."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path

import pytest

from ntk_alibi.cli import main
from ntk_alibi.evaluation.comparing import plan

pytestmark = [pytest.mark.usefixtures("in_tmp"), pytest.mark.slow]  # needs the evaluation harness

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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The harness's command is parsed alone: other tests run its tasks."""
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
    taken: list[argparse.Namespace] = []
    monkeypatch.setattr("ntk_alibi.evaluation.harness.run.prepare", taken.append)
    monkeypatch.setattr("lm_eval._cli.HarnessCLI.execute", lambda *_: None)
    (harness,) = (words for words in commands if "--apply_chat_template" in words)
    main(harness)
    assert taken[0].model_args["pretrained"] == tiny_checkpoint.as_posix()
    assert taken[0].apply_chat_template


def test_the_probe_costs_no_second_reading(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its answers are taken over by the study."""
    from ntk_alibi.evaluation.harness import stored_answers

    records = ["--multiples", "1", "--records", "1", "--prose-windows", "0", "--output", "kept"]
    command = ["eval", "--model", str(tiny_checkpoint), "--train-length", "256", *records]
    main([*command, "--methods", "original"])
    capsys.readouterr()
    counted = sum(map(stored_answers.count_answers, Path("kept").glob("*.db")))
    assert counted == 4 + 5  # questions about lines and topics


def test_longer_records_alone_are_probed_at_the_training_length(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"multiples": (2, 4), "line_records": 1, "topic_records": 0, "prose_windows": 0}
    monkeypatch.setattr(plan, "QUICK", few)
    main(["eval", "--quick", "--model", str(tiny_checkpoint), *SMALL])
    out, error = capsys.readouterr()
    assert AT_ITS_OWN in error  # which the study itself does not read
    assert "The model answers 0 %" in out


def test_prose_alone_asks_nothing(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = ["--multiples", "1", "--records", "0", "--prose-windows", "1"]
    main(["eval", "--model", str(tiny_checkpoint), *SMALL, *records])
    out, error = capsys.readouterr()
    assert "answers" not in out
    assert "warning" not in error
