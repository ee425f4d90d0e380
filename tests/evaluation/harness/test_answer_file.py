"""The answer file: it writes each answer once, and an interruption loses no finished pass."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sqlitedict")

from sqlitedict import SqliteDict

from ntk_alibi.evaluation.harness import answer_file
from ntk_alibi.evaluation.harness.answer_file import AnswerFile


def test_answers_come_back(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with AnswerFile(path) as answers:
        answers["a"] = (-1.5, True)
        assert "a" in answers
        assert answers["a"] == (-1.5, True)
        assert "b" not in answers
        answers.commit()
    with AnswerFile(path) as answers:
        assert "a" in answers
        assert answers["a"] == (-1.5, True)
        assert "b" not in answers


def test_the_harness_reads_what_we_wrote_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with AnswerFile(path) as ours:
        ours["a"] = (-1.5, True)
        ours.commit()
    with SqliteDict(str(path), autocommit=True) as theirs:
        assert theirs["a"] == (-1.5, True)
        theirs["b"] = (-2.5, False)
    with AnswerFile(path) as ours:
        assert ours["b"] == (-2.5, False)


def test_an_answer_is_written_once_and_quick_ones_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_file, "SECONDS_BETWEEN_WRITES", math.inf)
    done: list[str] = []
    with AnswerFile(tmp_path / "answers.db") as answers:
        execute = answers.conn.execute

        def noted(statement: str, *rest: object) -> object:
            done.append("write" if statement.startswith("REPLACE") else "commit")
            return execute(statement, *rest)

        monkeypatch.setattr(answers.conn, "execute", noted)
        for key in "abab":
            answers[key] = key
        assert done == ["write", "write"]
        monkeypatch.setattr(answer_file, "SECONDS_BETWEEN_WRITES", 0.0)
        answers["c"] = "c"
        assert done == ["write", "write", "write", "commit"]


def test_a_killed_process_has_kept_its_passes(tmp_path: Path) -> None:
    """The process stores answers and commits, as StretchedLM does after each pass."""
    path = tmp_path / "answers.db"
    code = (
        "import os, sys\n"
        "from ntk_alibi.evaluation.harness.answer_file import AnswerFile\n"
        "answers = AnswerFile(sys.argv[1])\n"
        "for i in range(100): answers[str(i)] = i\n"
        "answers.commit()\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    with AnswerFile(path) as answers:
        assert sorted(map(int, answers.keys())) == list(range(100))
