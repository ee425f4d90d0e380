"""Comparison of stretchings on models that nothing was searched on.

`python -m ntk_alibi.replication --output FOLDER` trains the models of models.py and reads with each
what reading.py plans. Trainings resume from their checkpoints and readings from their stored
answers, so that an interruption loses half a minute at most.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ntk_alibi import _checks, _files
from ntk_alibi.evaluation.report.markdown import check_section, replace_section
from ntk_alibi.replication import tables
from ntk_alibi.replication.models import GROUPS, NanoModel
from ntk_alibi.replication.reading import ReadingPlan, read
from ntk_alibi.training.processes import each_in_a_process


def train_and_read(model: NanoModel, output: Path, reading: ReadingPlan) -> list[str]:
    """Train a model and read with it; steps and results already stored in output are reused.

    Args:
        model: the model.
        output: folder of the study; the model gets a subfolder.
        reading: numbers of records and windows.

    Returns:
        The names of the new results.
    """
    folder = _files.writable_folder(output / model.name)
    model.train(folder)
    return list(read(model, folder, reading))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: train and read with all models, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m ntk_alibi.replication", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("replication"),
        help="folder of the study (%(default)s)",
    )
    parser.add_argument(
        "--groups", nargs="*", choices=GROUPS, default=list(GROUPS), help="models (all)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count(),
        help="number of processes, each with one thread (%(default)s)",
    )
    parser.add_argument(
        "--document",
        type=Path,
        help="Markdown file whose sections get the tables; pictures/ beside it gets the pictures",
    )
    options = parser.parse_args(arguments)
    _checks.integer("--processes", options.processes, minimum=1)
    if options.document:
        for name in tables.SECTIONS:
            check_section(options.document, name)
        _files.writable_folder(options.document.parent / "pictures")
    _files.writable_folder(options.output)
    models = [model for group in options.groups for model in GROUPS[group]]
    work = partial(train_and_read, output=options.output, reading=ReadingPlan())
    for lines in each_in_a_process(work, models, options.processes):
        print(*lines, sep="\n", flush=True)
    summary = tables.summarise(options.output)
    for name, text in tables.tables(summary).items():
        print(f"\n{name}\n\n{text}")
    if options.document:
        write_document(summary, options.document)


def write_document(summary: tables.Summary, document: Path) -> None:
    """Write the tables into a document's sections, and numbers and pictures into pictures/.

    Args:
        summary: from `tables.summarise`.
        document: a Markdown file with markers for the sections; pictures/ is beside it.
    """
    pictures = document.parent / "pictures"
    pictures.joinpath("replication.json").write_text(json.dumps(summary) + "\n")
    for name, figure in tables.figures(summary).items():
        figure.savefig(pictures / f"{name}.png", dpi=110)
    for name, text in tables.tables(summary).items():
        replace_section(document, name, text)
