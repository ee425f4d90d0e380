"""Does stretching an encoder do something: `python -m studies.encoder`.

Small encoders with symmetric ALiBi are trained to find masked numbers, and read texts of one to
eight training lengths with the rules of reading.py. Trainings resume from their checkpoints and
readings from their stored answers, so that an interruption loses half a minute at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from ntk_alibi import _files
from studies.command import check_options, print_each, report, study_parser
from studies.encoder import tables
from studies.encoder.reading import ReadingPlan, read
from studies.encoder.recipe import EncoderRecipe, EncoderTraining
from studies.results_file import ResultsFile


def train_and_read(recipe: EncoderRecipe, plan: ReadingPlan, output: Path) -> list[str]:
    """Train an encoder and read with it; steps and results already stored in output are reused.

    Args:
        recipe: settings of the training.
        plan: how many texts are read.
        output: folder of the study; the encoder gets a subfolder.

    Returns:
        The names of the new results.

    Raises:
        ValueError: the subfolder belongs to another recipe or plan.
    """
    folder = output / f"seed-{recipe.seed}"
    file = ResultsFile(folder / "results.json", recipe, plan)
    results = file.read() or {"found": {}}
    trained = EncoderTraining(recipe)
    trained.run(folder)
    results["training"] = asdict(trained.curriculum)
    new = []
    for key, found in read(trained, plan, results["found"]):
        results["found"][key] = found
        file.write(results)
        new.append(f"seed {recipe.seed}, {key}")
    return new


def main(
    arguments: Sequence[str] | None = None,
    *,
    recipe: EncoderRecipe | None = None,
    plan: ReadingPlan | None = None,
) -> None:
    """Run the command line: train and read with all encoders, and print the tables.

    Args:
        arguments: arguments of the command line.
        recipe: settings that all trainings share; the study's by default.
        plan: how many texts are read; the study's plan by default.
    """
    about = str(__doc__).partition("\n")[0]
    parser = study_parser("python -m studies.encoder", about, "encoder", tables.SEEDS)
    options = parser.parse_args(arguments)
    check_options(options, tables.SECTIONS)
    recipes = [replace(recipe or EncoderRecipe(), seed=seed) for seed in options.seeds]
    work = partial(train_and_read, plan=plan or ReadingPlan(), output=options.output)
    with _files.only_run("--output", options.output):
        print_each(work, recipes, options.processes)
        summary = tables.summarise(options.output)
    report(
        tables.tables(summary),
        options,
        ("encoder.json", summary),
        lambda: {"encoder": tables.figure(summary)},
        dpi=100,
    )
