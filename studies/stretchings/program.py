"""Comparison of stretchings in forms of records that the models were not trained on.

`python -m studies.stretchings --output FOLDER` trains the models of models.py and reads with each
what reading.py plans. Trainings resume from their checkpoints and readings from their results, so
that an interruption loses half a minute at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ntk_alibi import _files
from studies.command import check_options, print_each, report, study_parser
from studies.nano_bloom.program import train
from studies.stretchings import tables
from studies.stretchings.models import WIDTHS, NanoMPTRecipe, NanoMPTTraining, recipes
from studies.stretchings.reading import ReadingPlan, read


def train_and_read(recipe: NanoMPTRecipe, output: Path, plan: ReadingPlan) -> list[str]:
    """Train a model and read with it; steps and results already stored in output are reused.

    Args:
        recipe: settings of the training.
        output: folder of the study; the model gets a subfolder.
        plan: how many records and windows are read.

    Returns:
        The names of the new results.
    """
    folder = _files.writable_folder(output / recipe.name)
    if not (folder / "model.safetensors").exists():
        train(recipe, folder, quiet=True, kind=NanoMPTTraining)
    return list(read(recipe, folder, plan))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: train and read with all models, and print the tables."""
    about = str(__doc__).partition("\n")[0]
    parser = study_parser("python -m studies.stretchings", about, output="stretchings")
    parser.add_argument(
        "--sizes", nargs="*", choices=WIDTHS, default=list(WIDTHS), help="models (all)"
    )
    options = parser.parse_args(arguments)
    check_options(options, tables.SECTIONS)
    chosen = [recipe for size in options.sizes for recipe in recipes(size)]
    work = partial(train_and_read, output=options.output, plan=ReadingPlan())
    with _files.only_run("--output", options.output):
        print_each(work, chosen, options.processes)
        summary = tables.summarise(options.output)
    report(
        tables.tables(summary),
        options,
        ("stretching-forms.json", summary),
        lambda: tables.figures(summary),
        dpi=110,
    )
