"""What `ntk-alibi demo` prints: the README's answers first, and then what the time allows."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from ntk_alibi.cli import demo, main
from ntk_alibi.evaluation import Plan, evaluate
from ntk_alibi.evaluation.records import record
from ntk_alibi.evaluation.records.record import Case
from ntk_alibi.methods import ORIGINAL, RECOMMENDED
from ntk_alibi.models import load
from repository import ROOT

pytestmark = pytest.mark.usefixtures("in_tmp")


def test_the_readmes_question_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--seconds", "0"])
    lines = capsys.readouterr().out.splitlines()
    promised = re.findall("^#> (.*)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert [line.partition(":")[0] for line in promised] == ["original", "stretched"]
    assert promised[1].endswith(" 4217")
    assert not promised[0].endswith(" 4217")
    assert "  line server-17: REGISTER_CONTENT is <4217>" in lines[: lines.index(promised[0])]
    assert [line for line in lines if re.match("original|stretched", line)] == promised
    (rest,) = (line for line in lines if line.startswith("not read"))
    assert re.findall(r"\d+", rest.partition(":")[2]) == "2048 4096 8192 16384 32768".split()
    assert not list(Path().iterdir())


def test_the_command_for_the_own_model_is_one_of_eval(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[argparse.Namespace] = []
    monkeypatch.setattr("ntk_alibi.cli.evaluate._run", taken.append)
    monkeypatch.setattr(demo, "_answer_the_question", lambda *_: None)
    main(["demo", "--seconds", "0"])
    (command,) = re.findall("^  ntk-alibi (.*)$", capsys.readouterr().out, re.MULTILINE)
    main(shlex.split(command))
    assert taken[0].model == "MODEL"
    assert taken[0].methods == [ORIGINAL, RECOMMENDED]


def test_the_table_has_the_lengths_that_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which a pass takes half a second, then 2, then 8."""
    now = [0.0]

    def read(_: object, case: Case) -> list[bool]:
        now[0] += (round(len(case.tokens) / 2048)) ** 2 / 2
        return [place % 2 == 1 for place in range(len(case.answers))]

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(record, "answered", read)
    monkeypatch.setattr(demo, "_answer_the_question", lambda *_: None)
    main(["demo", "--seconds", "50"])
    out = capsys.readouterr().out
    rows = re.findall(r"^ +(\d+) +(.+) \(50%\) +(.+) \(50%\)$", out, re.MULTILINE)
    assert rows == [
        ("2048", "64 of 128", "64 of 128"),
        ("4096", "16 of 32", "16 of 32"),
        ("8192", "16 of 32", "16 of 32"),
    ]
    assert "not read in 50 seconds (--seconds gives more): 16384, 32768 tokens\n" in out


@pytest.mark.slow
def test_the_table_is_what_eval_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MULTIPLES", (1, 2))
    monkeypatch.setattr(demo, "RECORDS", 1)
    main(["demo", "--seconds", "600"])
    rows = re.findall(r" (\d+) of 32 ", capsys.readouterr().out)
    model, tokenizer, train_length = load()
    plan = Plan(
        *(train_length, (ORIGINAL, RECOMMENDED), (1, 2)),
        **{"line_records": 1, "topic_records": 0, "prose_windows": 0},
    )
    found = evaluate(model, tokenizer, plan, "answers", quiet=True).retrieval
    counts = found.pivot_table(index="multiple", columns="method", values="accuracy") * 32
    assert list(map(int, rows)) == counts[[ORIGINAL, RECOMMENDED]].to_numpy().ravel().tolist()
