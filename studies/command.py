"""What all studies share: options, processes of one thread each, and tables of a document."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

import ntk_alibi
from ntk_alibi import _checks, _files, plots
from ntk_alibi.evaluation.report.markdown import replace_section, section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Item = TypeVar("Item")
Result = TypeVar("Result")


def study_parser(
    prog: str, description: str, output: str, seeds: Sequence[int] = ()
) -> argparse.ArgumentParser:
    """Return a parser with the options that all studies share.

    Args:
        prog: the command.
        description: a sentence about the study.
        output: the default folder of the study.
        seeds: the default seeds of its trainings, for the option --seeds.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    if seeds:
        parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
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
        help="Markdown file whose sections get the tables",
    )
    parser.add_argument(
        "--pictures",
        type=Path,
        help="folder that gets the document's pictures (pictures/ beside the document)",
    )
    return parser


def check_options(options: argparse.Namespace, sections: Iterable[str]) -> None:
    """Check the options of a study before hours of work, and make its folders.

    Args:
        options: from a parser of `study_parser`.
        sections: names of the sections that the document must have.
    """
    for seed in getattr(options, "seeds", ()):
        _checks.integer("--seeds", seed, minimum=0)
    _checks.integer("--processes", options.processes, minimum=1)
    if options.document:
        for name in sections:
            section(options.document, name)
        options.pictures = options.pictures or options.document.parent / "pictures"
        _files.writable_folder(options.pictures)
    _files.writable_folder(options.output)


def print_each(
    work: Callable[[Item], Sequence[str]], items: Sequence[Item], processes: int
) -> None:
    """Print the lines that work(item) returns for each item, as soon as they are there."""
    for lines in run_in_processes(work, items, processes):
        print(*lines, sep="\n", flush=True)


def report(
    tables: Mapping[str, str],
    options: argparse.Namespace,
    data: tuple[str, Mapping[str, Any]],
    figures: Callable[[], Mapping[str, Figure]],
    dpi: int,
) -> None:
    """Print tables with their names, and write them into a document if there is one.

    Args:
        tables: the tables by the names of the document's sections.
        options: checked options, with the document and the folder of its pictures.
        data: a file name in that folder, and what is written there as JSON.
        figures: function that draws the figures, by file name without the ending.
        dpi: resolution of the figures.
    """
    for name, text in tables.items():
        print(f"\n{name}\n\n{text}")
    if options.document is None:
        return
    options.pictures.joinpath(data[0]).write_text(json.dumps(data[1]) + "\n")
    with plots.style("light"):
        for name, figure in figures().items():
            figure.savefig(options.pictures / f"{name}.png", dpi=dpi)
    for name, text in tables.items():
        replace_section(options.document, name, text)


def run_in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Iterator[Result]:
    """Yield work(item) for each item, in the order in which they finish.

    The processes end after the last item, after an error, and when this process ends or is killed.

    Args:
        work: a function that can be pickled.
        items: values that can be pickled.
        processes: number of processes.

    Raises:
        ChildProcessError: a process was killed.
    """
    if not items:
        return
    # spawn, since OpenMP has no threads in a forked child
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    with ProcessPoolExecutor(processes, context, _prepare, (reader,)) as pool:
        try:
            for done in as_completed([pool.submit(work, item) for item in items]):
                yield done.result()
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process was killed, perhaps for lack of memory; run the same command again to "
                "continue, with fewer --processes"
            ) from None
        finally:
            writer.close()
            reader.close()


def _prepare(parent: Connection) -> None:
    torch.set_num_threads(1)
    ntk_alibi.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: Connection) -> None:
    """Exit when the parent closes its end of a pipe, after an error or because it has ended.

    Otherwise this process and the next run would write into one folder.
    """
    parent.poll(None)
    os._exit(1)
