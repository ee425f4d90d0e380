"""The study: it survives interruptions and does all its work by one command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from studies import command
from studies.schemes import grid, program
from studies.schemes.recipe import StudyTraining
from studies.schemes.tables import SECTIONS

from small_studies import TINY, TINY_PLAN, interrupted

pytestmark = pytest.mark.slow  # of a program beside the package


def test_interrupted_work_ends_in_the_same_numbers(tmp_path: Path) -> None:
    name = "fox"  # it has parameters with an optimizer of their own
    recipe = replace(TINY, scheme=name)
    program.train_and_read(recipe, TINY_PLAN, tmp_path / "whole")
    with interrupted(StudyTraining, 2):
        program.train_and_read(recipe, TINY_PLAN, tmp_path / "resumed")
    program.train_and_read(recipe, TINY_PLAN, tmp_path / "resumed")
    whole, resumed = (tmp_path / x / f"{name}-0" for x in ("whole", "resumed"))
    measured, again = (
        json.loads((x / "results.json").read_text())["measured"] for x in (whole, resumed)
    )
    assert set(measured) >= {"plain/1", "plain/2", "window/2"}
    assert measured == again
    checkpoints = (torch.load(x / "train.ckpt", weights_only=True) for x in (whole, resumed))
    first, second = (checkpoint["model"] for checkpoint in checkpoints)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_results_of_other_work_are_not_continued(tmp_path: Path) -> None:
    recipe = replace(TINY, scheme="none", steps=1)
    program.train_and_read(recipe, TINY_PLAN, tmp_path)
    with pytest.raises(ValueError, match="holds results of other work"):
        program.train_and_read(recipe, replace(TINY_PLAN, records=3), tmp_path)
    with pytest.raises(ValueError, match="holds results of other work"):
        program.train_and_read(replace(recipe, steps=2), TINY_PLAN, tmp_path)
    (tmp_path / "none-0/results.json").unlink()
    with pytest.raises(ValueError, match="must be a checkpoint of"):
        program.train_and_read(replace(recipe, steps=2), TINY_PLAN, tmp_path)


def at_once(work: Any, items: Sequence[Any], processes: int) -> Iterator[Any]:
    """Stand for `run_in_processes`, whose processes take seconds to start."""
    assert processes == 2
    yield from map(work, items)


def test_the_command_tries_chooses_trains_and_writes_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_in_processes", at_once)
    recipe = replace(TINY, steps=1)
    document = tmp_path / "page.md"
    document.write_text("\n".join(f"<!-- {x}: begin -->\n<!-- {x}: end -->" for x in SECTIONS))
    arguments = ["--output", str(tmp_path / "study"), "--schemes", "alibi", "none"]
    arguments += ["--seeds", "3", "4", "--processes", "2"]
    program.main([*arguments, "--grid-only"], recipe=recipe, plan=TINY_PLAN)
    assert not list(tmp_path.glob("study/*/results.json"))
    assert len(list(tmp_path.glob("study/grid/*/outcome.json"))) == 2 * len(grid.runs(TINY))
    assert "did not learn" in capsys.readouterr().out
    program.main([*arguments, "--document", str(document)], recipe=recipe, plan=TINY_PLAN)
    shown = capsys.readouterr().out
    assert "alibi, seed 3: done" in shown
    assert "4 of 60 trainings of this protocol are finished" in shown
    page = document.read_text()
    assert "| ALiBi | 0 of 2: none at 95 % |" in page
    assert "CPU hours: grid" in page
    stored = json.loads((tmp_path / "pictures/extrapolation.json").read_text())
    assert stored["training"]["none"]["seeds"] == [3, 4]
    settled = grid.chosen(replace(recipe, scheme="alibi"), TINY_PLAN, tmp_path / "study")
    made_with = json.loads((tmp_path / "study/alibi-3/results.json").read_text())["recipe"]
    assert made_with == json.loads(json.dumps(asdict(replace(settled, seed=3))))


def test_the_command_refuses_the_seeds_of_the_grid_and_documents_without_sections(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=r"--seeds must hold none of the grid's seeds.*100"):
        program.main(["--output", str(tmp_path), "--seeds", "0", "100"])
    document = tmp_path / "page.md"
    document.write_text("no markers")
    with pytest.raises(ValueError, match="must hold the markers"):
        program.main(["--output", str(tmp_path), "--document", str(document)])
