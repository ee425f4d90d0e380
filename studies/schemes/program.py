"""Study of length extrapolation by position scheme: `python -m studies.schemes`.

Each scheme first tries the settings of grid.py on seeds of their own. The study then trains a small
decoder with each scheme and seed, with the setting chosen and the same number of steps. Each model
reads records and prose of one to eight training lengths, both as trained and in reading modes that
are meant to help with longer texts. Trainings resume from their checkpoints and readings from their
stored results, so that an interruption loses at most half a minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from ntk_alibi import _files
from studies.command import check_options, print_each, report, study_parser
from studies.results_file import ResultsFile
from studies.schemes import grid, tables
from studies.schemes.measure import Measurement, MeasurePlan
from studies.schemes.readings import views
from studies.schemes.recipe import StudyRecipe, StudyTraining
from studies.schemes.schemes import SCHEMES
from studies.schemes.summary import SEEDS, summarise


def train_and_read(recipe: StudyRecipe, plan: MeasurePlan, output: Path) -> list[str]:
    """Train a model and read with it; steps and results already stored in output are reused.

    Args:
        recipe: settings of the training.
        plan: plan of the measurements.
        output: folder of the study; the model's checkpoint, log and results go to its subfolder
            `<scheme>-<seed>/`.

    Returns:
        A line that says what is done.

    Raises:
        ValueError: the subfolder belongs to another recipe or plan.
    """
    folder = output / f"{recipe.scheme}-{recipe.seed}"
    file = ResultsFile(folder / "results.json", recipe, plan)
    results = file.read() or {"measured": {}, "reading_cpu_seconds": 0.0}
    done = [f"{recipe.scheme}, seed {recipe.seed}: done"]
    expected = views(SCHEMES[recipe.scheme], plan.multiples, recipe.train_length)
    if not expected.keys() - results["measured"]:
        return done
    trained = StudyTraining(recipe)
    trained.run(folder)
    results["training"] = asdict(trained.curriculum)
    before = time.process_time()
    for key, result in Measurement(trained, plan).run(results["measured"]):
        results["measured"][key] = result
        now = time.process_time()
        results["reading_cpu_seconds"] += now - before
        before = now
        file.write(results)
    return done


def _try_setting(recipe: StudyRecipe, plan: MeasurePlan, output: Path) -> list[str]:
    outcome = grid.run(recipe, plan, output)
    learned = outcome["learned_at"]
    told = "did not learn" if learned is None else f"learned in {learned} steps"
    return [f"{grid.run_folder(recipe, output).name}: {told}"]


def main(
    arguments: Sequence[str] | None = None,
    *,
    recipe: StudyRecipe | None = None,
    plan: MeasurePlan | None = None,
) -> None:
    """Run the command line: try settings, train and measure all models, and print the tables.

    Args:
        arguments: arguments of the command line.
        recipe: settings that all trainings share; the study's by default.
        plan: plan of the measurements; the study's by default.
    """
    options = _options(arguments)
    recipe, plan = recipe or StudyRecipe(), plan or MeasurePlan()
    recipes = [replace(recipe, scheme=scheme) for scheme in options.schemes]
    tries = [run for each in recipes for run in grid.runs(each)]
    with _files.only_run("--output", options.output):
        work = partial(_try_setting, plan=plan, output=options.output)
        print_each(work, tries, options.processes)
        if not options.grid_only:
            settled = [grid.chosen(each, plan, options.output) for each in recipes]
            trainings = [replace(each, seed=seed) for seed in options.seeds for each in settled]
            work = partial(train_and_read, plan=plan, output=options.output)
            print_each(work, trainings, options.processes)
        summary = summarise(options.output)
    shown = tables.tables(summary)
    labels = {name: tables.label(summary, name) for name in summary["measured"]}
    named = {"machine": shown["machine"], "labels": labels, **summary}
    report(
        shown,
        options,
        ("extrapolation.json", named),
        lambda: {"extrapolation": tables.figure(summary)},
        dpi=90,
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the checked options of the command line."""
    about = str(__doc__).partition("\n")[0]
    parser = study_parser("python -m studies.schemes", about, "study", SEEDS)
    parser.add_argument("--schemes", nargs="*", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument(
        "--grid-only", action="store_true", help="try the settings of each scheme, and end"
    )
    options = parser.parse_args(arguments)
    if set(options.seeds) & set(grid.GRID_SEEDS):
        raise ValueError(
            f"--seeds must hold none of the grid's seeds {grid.GRID_SEEDS}, got {options.seeds}"
        )
    check_options(options, tables.SECTIONS)
    return options
