"""The grid of settings that each scheme tries, with other seeds, before its trainings.

How fast a small model learns the task depends on the learning rate of the matrices and on the first
weights, and not in the same way for each scheme. So each scheme has the same few settings to choose
from, and the rule of `choose` chooses among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from studies.results_file import ResultsFile
from studies.schemes.measure import Measurement, MeasurePlan
from studies.schemes.recipe import StudyRecipe, StudyTraining
from studies.training import CHECKPOINT


@dataclass(frozen=True)
class Setting:
    """A setting that a scheme can choose; its fields are fields of `StudyRecipe`.

    Attributes:
        muon_rate: learning rate of the matrices.
        first_weights_std: standard deviation of the first weights.
    """

    muon_rate: float
    first_weights_std: float


#: The settings of the grid.
SETTINGS = tuple(Setting(rate, std) for rate, std in product((0.02, 0.04), (0.02, 0.06)))

#: Seeds of the grid's runs, which are never seeds of results.
GRID_SEEDS = (100,)


def runs(recipe: StudyRecipe) -> list[StudyRecipe]:
    """Return the recipes of a scheme's runs, which end as soon as the task is learned."""
    return [
        replace(recipe, **asdict(setting), seed=seed, until_learned=True)
        for setting in SETTINGS
        for seed in GRID_SEEDS
    ]


def run_folder(recipe: StudyRecipe, output: Path) -> Path:
    """Return the folder of a run in the folder of the study."""
    setting = f"{recipe.muon_rate:g}-{recipe.first_weights_std:g}-{recipe.seed}"
    return output / "grid" / f"{recipe.scheme}-{setting}"


def run(recipe: StudyRecipe, plan: MeasurePlan, output: Path) -> dict[str, Any]:
    """Train a run to its end and return its outcome; stored steps and outcomes are reused.

    Args:
        recipe: one of `runs`.
        plan: plan of the measurements, whose records at the training length give the loss.
        output: folder of the study.

    Returns:
        learned_at, the number of steps to learn or None; steps, the number of steps done; loss, the
        mean nats of an answer; cpu_seconds, of the steps.

    Raises:
        ValueError: the folder of the run belongs to another recipe or plan.
    """
    folder = run_folder(recipe, output)
    file = ResultsFile(folder / "outcome.json", recipe, plan)
    outcome = file.read()
    if outcome is None:
        trained = StudyTraining(recipe)
        trained.run(folder)
        state = trained.curriculum
        outcome = {
            "learned_at": state.learned_at,
            "steps": state.step,
            "loss": Measurement(trained, plan).loss(),
            "cpu_seconds": state.cpu_seconds,
        }
        file.write(outcome)
        (folder / CHECKPOINT).unlink()
    return outcome


def choose(outcomes: Sequence[tuple[Setting, dict[str, Any]]]) -> Setting:
    """Choose a scheme's setting.

    It is the setting with which the task is learned on most seeds; among equals, in the fewest
    steps, as a mean over these seeds; then with the lowest mean loss.

    Args:
        outcomes: settings and outcomes of `run`, equally many for each setting.
    """

    def order(setting: Setting) -> tuple[float, float, float]:
        own = [outcome for made_with, outcome in outcomes if made_with == setting]
        learned = [x["learned_at"] for x in own if x["learned_at"] is not None]
        steps = float(np.mean(learned)) if learned else 0.0
        return -len(learned), steps, float(np.mean([x["loss"] for x in own]))

    return min(dict.fromkeys(setting for setting, _ in outcomes), key=order)


def chosen(recipe: StudyRecipe, plan: MeasurePlan, output: Path) -> StudyRecipe:
    """Return a recipe with the setting that its scheme's finished runs choose."""
    return replace(recipe, **asdict(choose(read_outcomes(recipe, plan, output))))


def read_outcomes(
    recipe: StudyRecipe, plan: MeasurePlan, output: Path
) -> list[tuple[Setting, dict[str, Any]]]:
    """Return settings and outcomes of a scheme's runs.

    Raises:
        ValueError: a run is not finished.
    """
    found = []
    for each in runs(recipe):
        path = run_folder(each, output) / "outcome.json"
        outcome = ResultsFile(path, each, plan).read()
        if outcome is None:
            raise ValueError(f"{path} must hold the outcome of a finished run, is missing")
        found.append((Setting(each.muon_rate, each.first_weights_std), outcome))
    return found
