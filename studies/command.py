"""The command line of a study: its folder, its processes, and the document with its tables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ntk_alibi import _checks, _files
from ntk_alibi.evaluation.report.markdown import check_section, replace_section
from studies.processes import Item, each_in_a_process


def study_parser(prog: str, description: str, output: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all studies: --output, --processes and --document.

    Args:
        prog: the command.
        description: a sentence about the study.
        output: the folder of the study by default.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument(
        "--output", type=Path, default=Path(output), help="folder of the study (%(default)s)"
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
    return parser


def check_options(options: argparse.Namespace, sections: Iterable[str]) -> None:
    """Check the options of all studies before hours of work, and make their folders.

    Args:
        options: from a parser of `study_parser`.
        sections: names of the sections that the document must have.
    """
    _checks.integer("--processes", options.processes, minimum=1)
    if options.document:
        for name in sections:
            check_section(options.document, name)
        _files.writable_folder(options.document.parent / "pictures")
    _files.writable_folder(options.output)


def print_each(
    work: Callable[[Item], Sequence[str]], items: Sequence[Item], processes: int
) -> None:
    """Print the lines that work(item) returns for each item, as soon as it has finished."""
    for lines in each_in_a_process(work, items, processes):
        print(*lines, sep="\n", flush=True)


def print_tables(tables: Mapping[str, str]) -> None:
    """Print tables with their names."""
    for name, text in tables.items():
        print(f"\n{name}\n\n{text}")


def replace_tables(document: Path, tables: Mapping[str, str]) -> None:
    """Replace the sections of a document by tables of the same names."""
    for name, text in tables.items():
        replace_section(document, name, text)
