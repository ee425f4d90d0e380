"""Subcommand `ntk-alibi eval`."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.cli import subcommand

#: Folder in the working directory that keeps the answers of an unfinished run.
UNFINISHED = ".ntk-alibi-eval.unfinished"


#: Numbers in the plan of a study that are options, with their help.
_COUNTS = {
    "line_records": "records of lines for each length",
    "topic_records": "conversations for each length",
    "passkey_records": "records of prose with one number for each length (default: none)",
    "multikey_records": "records of prose with several numbers for each length (default: none)",
    "other_line_records": "records of lines with names that the nano BLOOM was not trained on, "
    "for each length (default: none)",
    "prose_windows": "windows of prose of the greatest length; 0 for none",
    "seed": "seed of the records",
}


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "eval",
        _run,
        "compare ALiBi scalings on a BLOOM model beyond its training length",
        "ntk-alibi eval --quick\n"
        "  ntk-alibi eval --model bigscience/bloom-1b7 --tasks longeval_lines_200 \\\n"
        "      --data longeval --methods original ntk:2",
    )
    parser.add_argument("--quick", action="store_true", help="small run of about a minute")
    parser.add_argument(
        "--model",
        metavar="DIR_OR_HUB_NAME",
        help="checkpoint folder or hub name (default: the embedded nano BLOOM)",
    )
    parser.add_argument(
        "--methods", nargs="+", metavar="METHOD", help="methods to compare, such as original ntk:4"
    )
    parser.add_argument(
        "--train-length", type=int, help="training length in tokens (default: from the config)"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument(
        "--output", metavar="FOLDER", help="folder that keeps the answer to each record"
    )
    subcommand.format_option(parser)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        default="ntk-alibi-eval.png",
        help="file of the picture (default: %(default)s)",
    )
    parser.add_argument(
        "--from-json",
        metavar="FILE",
        help="show tables and picture of an earlier --json output; runs no model",
    )
    parser.add_argument(
        "--multiples",
        nargs="+",
        type=float,
        metavar="X",
        help="lengths of the records in training lengths (default: 1 1.5 2 3 4)",
    )
    for name, what in _COUNTS.items():
        parser.add_argument(_flag(name), type=int, metavar="N", help=what)
    parser.add_argument(
        "--document",
        metavar="FILE",
        help="Markdown file that gets the tables, between <!-- SECTION: begin --> and end",
    )
    parser.add_argument(
        "--section", default="study", help="section of the document (default: %(default)s)"
    )
    others = parser.add_argument_group("other tasks of lm-evaluation-harness, one row per method")
    others.add_argument(
        "--tasks", nargs="+", metavar="TASK", help="harness tasks, such as longeval_lines_200"
    )
    others.add_argument(
        "--data", metavar="PATH", help="file or folder of records, for tasks that read one"
    )
    others.add_argument(
        "--metadata",
        type=subcommand.json_object,
        metavar="JSON",
        help="metadata of the tasks",
    )
    others.add_argument(
        "--batch-size", type=int, default=1, help="prompts per batch (default: %(default)s)"
    )
    others.add_argument(
        "--max-length", type=int, help="truncate prompts longer than this many tokens"
    )
    others.add_argument(
        "--truncation",
        choices=("middle", "left"),
        default="middle",
        help="where to truncate prompts (default: %(default)s)",
    )


def _run(options: argparse.Namespace) -> None:
    if options.data is not None and options.tasks is None:
        raise ValueError(f"--tasks must be given with --data, got only --data {options.data}")
    _checks.integer("--batch-size", options.batch_size, minimum=1)
    subcommand.check_lengths(options)
    subcommand.check_methods(options.methods or ())
    subcommand.check_output(options.output)
    if options.tasks is None:
        _check_plan(options)
        _study(options)
    else:
        _comparison(options)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextlib.contextmanager
def unfinished(output: str | None) -> Iterator[Path]:
    """Yield the folder of answers: the user's, or a temporary one that is removed at the end.

    An error leaves it, so that the next run continues from the answers.
    """
    from ntk_alibi.evaluation.harness.run import is_first_process

    folder = Path(UNFINISHED if output is None else output)
    yield folder
    sys.stdout.flush()  # a full disk is an error before the answers are removed
    if is_first_process() and output is None:
        shutil.rmtree(folder, ignore_errors=True)


def _study(options: argparse.Namespace) -> None:
    from matplotlib.backend_bases import FigureCanvasBase

    formats = [f".{name}" for name in FigureCanvasBase.get_supported_filetypes()]
    for path in _pictures(options):
        subcommand.check_picture("--plot", path, formats)
    if options.from_json is None:
        _measure(options)
    else:
        from ntk_alibi.evaluation.comparing.stored import read_summary

        _show(read_summary(options.from_json), options)


def _measure(options: argparse.Namespace) -> None:
    """Run the study, and show its summary in the first process."""
    from ntk_alibi.evaluation.comparing import length_study
    from ntk_alibi.evaluation.harness import run as harness
    from ntk_alibi.models import load
    from ntk_alibi.models.loading import NANO_BLOOM

    model, tokenizer, train_length = load(options.model, options.dtype)
    plan = _plan(options, subcommand.train_length(options, train_length))
    name = options.model or NANO_BLOOM
    with unfinished(options.output) as folder:
        summary = length_study.evaluate(
            model, tokenizer, plan, folder, quiet=options.format == "json", name=name
        )
        if harness.is_first_process():
            _show(summary, options)


def _plan(options: argparse.Namespace, train_length: int) -> Any:
    """Return the plan of the options."""
    from ntk_alibi.evaluation.comparing import plan

    given = {name: getattr(options, name) for name in ("methods", "multiples", *_COUNTS)}
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    return plan.Plan(train_length, **{**(plan.QUICK if options.quick else {}), **given})


def _check_plan(options: argparse.Namespace) -> None:
    """Check the options of the plan before any work."""
    from ntk_alibi.evaluation.report import markdown

    for multiple in options.multiples or ():
        _checks.finite("--multiples", multiple, minimum=0.0, inclusive=False)
    for name in _COUNTS:
        if (value := getattr(options, name)) is not None:
            _checks.integer(_flag(name), value, minimum=0)
    _plan(options, 1)
    if options.document is not None:
        markdown.check_section(Path(options.document), options.section)


def _pictures(options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the paths of the two pictures."""
    plot = Path(options.plot)
    return plot, plot.parent / f"{plot.stem}-depth{plot.suffix}"


def _show(summary: dict[str, Any], options: argparse.Namespace) -> None:
    from rich.console import Console

    from ntk_alibi.evaluation.report import markdown, tables
    from ntk_alibi.plots import depth_figure, study_figure

    drawn = {study_figure: True, depth_figure: bool(summary["by_depth"])}
    pictures = [
        (draw, path)
        for (draw, wanted), path in zip(drawn.items(), _pictures(options), strict=True)
        if wanted
    ]
    for draw, path in pictures:
        draw(summary).savefig(path, dpi=120)
    if options.document is not None:
        parts = [markdown.describe_machine(), f"    {shlex.join(['ntk-alibi', *options.words])}"]
        parts += map(tables.markdown, tables.study_tables(summary))
        markdown.replace_section(Path(options.document), options.section, "\n\n".join(parts))
    if options.format == "json":
        print(json.dumps(summary))
        return
    if subcommand.print_tables(tables.study_tables(summary), options):
        return
    console = Console()
    console.print(f"pictures: {', '.join(str(path) for _, path in pictures)}")
    examples = [next(iter(cells.values())) for cells in summary["commands"].values() if cells]
    if examples:
        title = "command that repeats one cell (--json lists all commands)"
        console.print(f"{title}:\n{examples[-1]}", soft_wrap=True)


def _comparison(options: argparse.Namespace) -> None:
    from ntk_alibi.evaluation.comparing import task_comparison
    from ntk_alibi.evaluation.comparing.plan import DEFAULT_METHODS
    from ntk_alibi.evaluation.harness import run as harness
    from ntk_alibi.evaluation.harness.model import StretchedLM
    from ntk_alibi.methods import parse_method
    from ntk_alibi.models import load
    from ntk_alibi.models.loading import NANO_BLOOM

    metadata = {**(options.metadata or {})}
    if options.data is not None:
        metadata["data"] = options.data
    name = options.model or NANO_BLOOM
    tasks = task_comparison.load_known(options.tasks, metadata, name)
    model, tokenizer, train_length = load(options.model, options.dtype)
    length = subcommand.train_length(options, train_length)
    methods = [parse_method(method, length) for method in options.methods or DEFAULT_METHODS]
    with harness.quiet():
        lm = StretchedLM(
            model,
            tokenizer=tokenizer,
            train_length=length,
            batch_size=options.batch_size,
            max_length=options.max_length,
            truncation=options.truncation,
            quiet=options.format == "json",
        )
    with unfinished(options.output) as folder:
        comparison = task_comparison.compare(
            lm, methods, tasks, metadata=metadata, model=name, cache=folder
        )
        if harness.is_first_process():
            _show_comparison(comparison, options)


def _show_comparison(comparison: dict[str, Any], options: argparse.Namespace) -> None:
    from rich.console import Console

    from ntk_alibi.evaluation.report import tables

    if options.format == "json":
        print(json.dumps(comparison))
        return
    if subcommand.print_tables(tables.comparison_tables(comparison), options):
        return
    truncation = next(iter(comparison["settings"].values()))["truncation"]
    limit = "" if options.max_length is None else f", {options.max_length} tokens"
    Console().print(f"truncation: {truncation}{limit}")
