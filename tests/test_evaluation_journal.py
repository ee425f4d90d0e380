"""Results survive interrupts, and are never mixed up."""

from __future__ import annotations

from pathlib import Path

import pytest

from ntk_alibi.evaluation.journal import Journal


def test_results_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Journal(path, {"a": 1}) as journal:
        assert len(journal) == 0
        journal.write("x", {"correct": True})
        journal.write("y", [1.5, "ä\n"])
    with Journal(path, {"a": 1}) as journal:
        assert journal["x"] == {"correct": True}
        assert journal["y"] == [1.5, "ä\n"]
        assert "z" not in journal
        journal.write("z", 1)
    with Journal(path, {"a": 1}) as journal:
        assert len(journal) == 3


def test_every_cut_of_the_file_resumes(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Journal(path, {"a": 1}) as journal:
        for i in range(3):
            journal.write(str(i), i * 10)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        with Journal(path, {"a": 1}) as journal:
            finished = whole[:size].count(b"\n") - 1
            assert len(journal) == max(0, finished)
            for i in range(3):
                if str(i) not in journal:
                    journal.write(str(i), i * 10)
        assert path.read_bytes() == whole


def test_what_is_written_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Journal(path, {}) as journal:
        journal.write("x", 1)
        assert path.read_text().endswith('{"key": "x", "result": 1}\n')


def test_other_work_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Journal(path, {"model": "a"}).__exit__(None, None, None)
    with pytest.raises(ValueError, match=r"results.jsonl holds results of other work.*remove it"):
        Journal(path, {"model": "b"})


@pytest.mark.parametrize("content", ["hello\n", '{"work": {}}\n{"kay": 1}\n', '{"work": {}}\n[]\n'])
def test_other_files_are_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"line \d: not a line of a results file"):
        Journal(path, {})
    assert path.read_text() == content
