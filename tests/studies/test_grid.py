"""The curriculum, which grows by accuracy alone, and the grid of settings."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from studies import training
from studies.schemes import grid
from studies.schemes.grid import GRID_SEEDS, SETTINGS, Setting
from studies.schemes.recipe import StudyCurriculum, StudyRecipe, StudyTraining
from studies.schemes.schemes import SCHEMES
from studies.schemes.summary import SEEDS
from studies.training import LEARNED

from small_studies import TINY, TINY_PLAN, interrupted

pytestmark = pytest.mark.slow  # of a program beside the package


def after(recipe: StudyRecipe, accuracies: list[float]) -> StudyCurriculum:
    """Return a curriculum after steps with these running accuracies."""
    curriculum = StudyCurriculum(recipe.start_length)
    for accuracy in accuracies:
        curriculum.accuracy = accuracy
        curriculum.advance(recipe)
    return curriculum


def test_lengths_do_not_grow_without_accuracy() -> None:
    recipe = StudyRecipe()
    low = after(recipe, [recipe.threshold] * recipe.steps)
    assert low.length == recipe.start_length
    assert low.learned_at is None
    assert low.finished(recipe)
    assert not after(recipe, [0.0] * (recipe.steps - 1)).finished(recipe)


def test_accuracy_starts_anew_at_each_length_and_is_noted_at_the_training_length_only() -> None:
    recipe = StudyRecipe(train_length=48, start_length=32)
    steps = training.LEAST_STEPS + 1
    grown = after(recipe, [1.0] * steps)
    assert (grown.length, grown.accuracy, grown.learned_at) == (48, 0.0, None)
    below = [1.0] * steps + [LEARNED - 0.01] * 5
    assert after(recipe, below).learned_at is None
    learned = after(recipe, [*below, LEARNED, 0.1, 1.0])
    assert learned.learned_at == len(below) + 1
    assert not learned.finished(recipe)
    assert learned.finished(replace(recipe, until_learned=True))


def outcomes(table: dict[int, list[tuple[int | None, float]]]) -> list[tuple[Setting, Any]]:
    return [
        (SETTINGS[i], {"learned_at": steps, "loss": loss})
        for i, seeds in table.items()
        for steps, loss in seeds
    ]


@pytest.mark.parametrize(
    ("table", "best"),
    [
        # learned on more seeds, though later and with a higher loss
        ({0: [(100, 0.1), (None, 0.1)], 1: [(900, 0.5), (800, 0.5)]}, 1),
        # as many seeds, fewer steps on average, though with a higher loss
        ({0: [(500, 0.1), (500, 0.1)], 1: [(100, 0.5), (800, 0.5)]}, 1),
        # only the seeds that learned count for the steps
        ({0: [(500, 0.1), (None, 0.1)], 1: [(None, 9.0), (400, 9.0)]}, 1),
        # none learned: the lowest mean loss
        ({0: [(None, 2.0), (None, 2.2)], 1: [(None, 1.0), (None, 3.0)], 2: [(None, 2.5)] * 2}, 1),
        # equal in all: the first of the grid
        ({2: [(None, 2.0)] * 2, 3: [(None, 2.0)] * 2}, 2),
    ],
)
def test_the_rule_of_choice(table: dict[int, list[tuple[int | None, float]]], best: int) -> None:
    assert grid.choose(outcomes(table)) == SETTINGS[best]


def test_a_run_resumes_and_its_outcome_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = grid.runs(replace(TINY, scheme="kerple-power"))[3]
    whole = grid.run(run, TINY_PLAN, tmp_path / "whole")
    with interrupted(StudyTraining, 2):
        grid.run(run, TINY_PLAN, tmp_path)
    done = StudyTraining.step
    steps = []

    def counted(self: StudyTraining) -> float:
        steps.append(self.curriculum.step)
        return done(self)

    monkeypatch.setattr(StudyTraining, "step", counted)
    resumed = grid.run(run, TINY_PLAN, tmp_path)
    assert steps == [2, 3]
    assert grid.run(run, TINY_PLAN, tmp_path) == resumed
    assert steps == [2, 3]  # a finished run is not trained again
    for key in ("learned_at", "steps", "loss"):
        assert resumed[key] == whole[key]
    assert not list(tmp_path.glob("grid/*/train.ckpt"))
    with pytest.raises(ValueError, match="holds results of other work"):
        grid.run(replace(run, steps=5), TINY_PLAN, tmp_path)


def test_a_choice_needs_all_runs(tmp_path: Path) -> None:
    recipe = replace(TINY, scheme="none", steps=1)
    runs = grid.runs(recipe)
    for run in runs[:-1]:
        grid.run(run, TINY_PLAN, tmp_path)
    with pytest.raises(ValueError, match="must hold the outcome of a finished run, is missing"):
        grid.chosen(recipe, TINY_PLAN, tmp_path)
    grid.run(runs[-1], TINY_PLAN, tmp_path)
    found = dict(grid.read_outcomes(recipe, TINY_PLAN, tmp_path))
    assert set(found) == set(SETTINGS)
    chosen = grid.chosen(replace(recipe, seed=3), TINY_PLAN, tmp_path)
    assert Setting(chosen.muon_rate, chosen.first_weights_std) in SETTINGS
    assert (chosen.seed, chosen.until_learned) == (3, False)


def test_every_scheme_tries_the_same_settings_on_seeds_of_their_own() -> None:
    tried: dict[str, list[Any]] = {}
    for scheme in SCHEMES:
        runs = grid.runs(StudyRecipe(scheme=scheme))
        tried[scheme] = [(x.muon_rate, x.first_weights_std, x.seed) for x in runs]
    assert len(set(map(tuple, tried.values()))) == 1
    assert len(set(tried["alibi"])) == len(SETTINGS) * len(GRID_SEEDS) >= 4
    assert not set(GRID_SEEDS) & set(SEEDS)
    for run in grid.runs(StudyRecipe(scheme="fox")):
        own = {"muon_rate", "first_weights_std", "seed", "until_learned"}
        same = {k: v for k, v in asdict(run).items() if k not in own}
        assert same == {k: v for k, v in asdict(StudyRecipe(scheme="fox")).items() if k not in own}
