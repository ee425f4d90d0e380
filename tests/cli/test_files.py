"""Files that commands write: on a full disk results survive, and a folder has one run at a time."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from commands import error_of, full_disk, other_run
from ntk_alibi import _files
from ntk_alibi.cli import main
from ntk_alibi.evaluation.comparing import plan
from repository import ROOT

pytestmark = pytest.mark.usefixtures("in_tmp")

QUICK = {"multiples": (1,), "line_records": 1, "topic_records": 0, "prose_windows": 0}


#: Bytes of the greatest file on a disk that is full.
ROOM = 300


def run_of(checkpoint: Path, *others: str) -> list[str]:
    model = ["--model", str(checkpoint), "--train-length", "256", "--methods", "original"]
    return ["eval", "--quick", *model, *others]


def test_results_are_printed_before_files_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Path("study.png")
    lost.write_text("earlier")
    stored = str(ROOT / "docs/pictures/nano-bloom.json")
    arguments = ["eval", "--from-json", stored, "--pictures", "."]
    with full_disk(ROOM), pytest.raises(SystemExit, match="2"):
        main(arguments)
    out, error = capsys.readouterr()
    assert "lines: accuracy" in out
    assert re.fullmatch(r"ntk-alibi: error: \[Errno \d+\] .*: '.*study.png'\n", error)
    assert lost.read_text() == "earlier"
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_full_disk_is_an_error_that_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    with full_disk(ROOM):
        error = error_of(["notebooks", "file"], capsys).splitlines()[-1]
    assert re.fullmatch(r"ntk-alibi: error: \[Errno \d+\] .*: 'file[^']*'", error)
    assert not [path for path in Path().rglob("*.*") if path.is_file()]


def test_a_file_keeps_its_link_and_what_others_raise() -> None:
    Path("far").mkdir()
    Path("link.txt").symlink_to("far/file.txt")
    with _files.replacing("link.txt") as file:
        file.write_text("new")
    assert Path("far/file.txt").read_text() == "new"
    assert Path("link.txt").is_symlink()
    with pytest.raises(FileNotFoundError, match="'none'"), _files.replacing("file.txt"):
        Path("none").read_text()
    assert os.listdir("far") == ["file.txt"]


def test_a_folder_has_one_run_at_a_time(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one learns of the first; a run that was killed leaves no lock."""
    monkeypatch.setattr(plan, "QUICK", QUICK)
    Path("answers").mkdir()
    with other_run(Path("answers")) as first:
        for _ in range(2):
            error = error_of(run_of(tiny_checkpoint, "--output", "answers"), capsys)
            assert re.search(
                "error: --output must be a folder that no other run uses, got 'answers', in use by "
                rf"process {first.pid} on \S+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\n",
                error,
            )
        main(run_of(tiny_checkpoint, "--output", "others", "--json"))
        first.kill()
    main(run_of(tiny_checkpoint, "--output", "answers", "--json"))
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[0])["retrieval"] == json.loads(lines[1])["retrieval"]
