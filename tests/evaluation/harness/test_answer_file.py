"""The answer file: it writes each answer once, an interruption loses nothing, damage is refused."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("sqlitedict")

from sqlitedict import SqliteDict

from ntk_alibi.evaluation.harness import answer_file
from ntk_alibi.evaluation.harness.answer_file import AnswerFile

pytestmark = pytest.mark.slow  # needs the evaluation harness


def test_answers_come_back(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with closing(AnswerFile(path)) as answers:
        answers["a"] = (-1.5, True)
        assert "a" in answers
        assert answers["a"] == (-1.5, True)
        assert "b" not in answers
    with closing(AnswerFile(path)) as answers:
        assert "a" in answers
        assert answers["a"] == (-1.5, True)
        assert "b" not in answers


def test_the_harness_reads_what_we_wrote_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with closing(AnswerFile(path)) as ours:
        ours["a"] = (-1.5, True)
    with SqliteDict(str(path), autocommit=True) as theirs:
        assert theirs["a"] == (-1.5, True)
        theirs["b"] = (-2.5, False)
    with closing(AnswerFile(path)) as ours:
        assert ours["b"] == (-2.5, False)


def test_an_answer_is_written_once_and_quick_ones_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_file, "SECONDS_BETWEEN_WRITES", math.inf)
    done: list[str] = []
    with closing(AnswerFile(tmp_path / "answers.db")) as answers:
        answers.connection.set_trace_callback(lambda statement: done.append(statement.split()[0]))
        for key in "abab":
            answers[key] = key
        assert done == ["BEGIN", "INSERT", "INSERT"]
        monkeypatch.setattr(answer_file, "SECONDS_BETWEEN_WRITES", 0.0)
        answers["c"] = "c"
        assert done == ["BEGIN", "INSERT", "INSERT", "INSERT", "COMMIT"]


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
    with closing(AnswerFile(path)) as answers:
        assert [answers[str(i)] for i in range(100)] == list(range(100))


def stored(path: Path, count: int = 200) -> bytes:
    with closing(AnswerFile(path)) as answers:
        for i in range(count):
            answers[str(i)] = (float(i), True)
    return path.read_bytes()


def test_a_transaction_that_was_cut_off_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    stored(path)
    code = (
        "import os, sys\n"
        "from ntk_alibi.evaluation.harness import answer_file\n"
        "answer_file.SECONDS_BETWEEN_WRITES = 1e9\n"
        "answers = answer_file.AnswerFile(sys.argv[1])\n"
        "answers.connection.execute('PRAGMA cache_size=1')  # pages go to the file at once\n"
        "for i in range(1000): answers[f'new {i}'] = 'x' * 1000\n"
        "os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.with_name("answers.db-journal").exists()
    with closing(AnswerFile(path)) as answers:
        assert answers["199"] == (199.0, True)
        assert "new 0" not in answers


def test_an_empty_file_holds_no_answers(tmp_path: Path) -> None:
    (tmp_path / "answers.db").touch()
    with closing(AnswerFile(tmp_path / "answers.db")) as answers:
        assert "a" not in answers


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"not a database" * 100,
        lambda content: content[:4096] + bytes(len(content) - 4096),
    ],
    ids=["truncated", "of another format", "zeros inside"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "answers.db"
    path.write_bytes(damage(stored(path)))
    with pytest.raises(ValueError, match=r"answers.db' must be a file of answers; remove it"):
        AnswerFile(path)


def test_a_damaged_answer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    stored(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE unnamed SET value = ? WHERE key = '5'", (b"nonsense",))
        connection.commit()
    with closing(AnswerFile(path)) as answers:
        assert answers["4"] == (4.0, True)
        with pytest.raises(ValueError, match=r"answers.db' must be a file of answers.*Unpickling"):
            answers["5"]


def test_a_full_disk_is_an_error_and_answers_before_it_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    stored(path)
    answers = AnswerFile(path)
    answers.connection.execute("PRAGMA max_page_count=1")  # SQLite answers as on a full disk
    with pytest.raises(OSError, match=r"answers.db: database or disk is full"):
        answers["new"] = "x" * 100_000
    answers.close()
    with closing(AnswerFile(path)) as again:
        assert again["199"] == (199.0, True)


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="unable to open database file"):
        AnswerFile(tmp_path / "no" / "answers.db")
