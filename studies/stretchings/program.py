"""Comparison of stretchings on models that nothing was searched on.

`python -m studies.stretchings --output FOLDER` trains the models of models.py and reads with each
what reading.py plans. Trainings resume from their checkpoints and readings from their stored
answers, so that an interruption loses half a minute at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ntk_alibi import _files
from studies.command import check_options, print_each, report, study_parser
from studies.stretchings import tables
from studies.stretchings.models import GROUPS, NanoModel
from studies.stretchings.reading import ReadingPlan, read


def train_and_read(model: NanoModel, output: Path, reading: ReadingPlan) -> list[str]:
    """Train a model and read with it; steps and results already stored in output are reused.

    Args:
        model: the model.
        output: folder of the study; the model gets a subfolder.
        reading: how many records and windows are read.

    Returns:
        The names of the new results.
    """
    folder = _files.writable_folder(output / model.name)
    model.train(folder)
    return list(read(model, folder, reading))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: train and read with all models, and print the tables."""
    about = str(__doc__).partition("\n")[0]
    parser = study_parser("python -m studies.stretchings", about, output="replication")
    parser.add_argument(
        "--groups", nargs="*", choices=GROUPS, default=list(GROUPS), help="models (all)"
    )
    options = parser.parse_args(arguments)
    check_options(options, tables.SECTIONS)
    models = [model for group in options.groups for model in GROUPS[group]]
    work = partial(train_and_read, output=options.output, reading=ReadingPlan())
    with _files.only_run("--output", options.output):
        print_each(work, models, options.processes)
        summary = tables.summarise(options.output)
    report(
        tables.tables(summary),
        options,
        ("replication.json", summary),
        lambda: tables.figures(summary),
        dpi=110,
    )
