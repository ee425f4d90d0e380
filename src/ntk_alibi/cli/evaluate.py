"""Subcommand `ntk-alibi eval`."""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi import _checks, _files
from ntk_alibi.cli import subcommand
from ntk_alibi.models.loading import NANO_BLOOM

if TYPE_CHECKING:
    from ntk_alibi.evaluation.comparing.plan import Plan
    from ntk_alibi.evaluation.comparing.summary import Summary

#: The folder that keeps the answers of an unfinished run, by default.
UNFINISHED = ".ntk-alibi-eval.unfinished"

#: Options that set the field of this name in the plan of a study, with their help.
_PLANNED = {
    "line_records": "records of lines for each length (default: 8)",
    "topic_records": "conversations for each length (default: 12)",
    "passkey_records": "records of prose with one pass key in it, for each length (default: none)",
    "multikey_records": "records of prose with several keys in it, for each length (default: none)",
    "other_line_records": "records of lines with names of other words, of several tokens each, "
    "for each length (default: none)",
    "prose_windows": "windows of prose of the greatest length; 0 for none (default: 8)",
    "seed": "seed of the records",
}

#: Options that have no effect on stored results.
_COMPUTED = (
    *("quick", "multiples", "lengths", "records", *_PLANNED),
    *("model", "methods", "train_length", "output", "seconds"),
)


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "eval",
        _run,
        "compare methods on a model beyond its training length, and name the best one",
        "ntk-alibi eval --quick\n"
        "  ntk-alibi eval --model bigscience/bloom-560m --methods original ntk:2",
    )
    parser.add_argument("--quick", action="store_true", help="small run of about a minute")
    subcommand.model_option(parser)
    subcommand.methods_option(
        parser,
        "methods",
        "methods to compare, see below (default: original and five others)",
    )
    subcommand.number_option(
        parser, "--train-length", "TOKENS", "training length in tokens (default: from the config)"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="dtype of the model's weights (default: %(default)s)",
    )
    _records_options(parser)
    _output_options(parser)


def _records_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of lines, conversations and prose."""
    lengths = parser.add_mutually_exclusive_group()
    subcommand.number_option(
        lengths,
        "--multiples",
        "X",
        "lengths of the records in training lengths (default: 1 1.5 2 3 4)",
        kind=float,
        nargs="+",
    )
    subcommand.number_option(
        lengths,
        "--lengths",
        "TOKENS",
        "lengths of the records in tokens, each at most 2^22, in place of --multiples",
        nargs="+",
    )
    counts = parser.add_mutually_exclusive_group()
    subcommand.number_option(
        counts,
        "--records",
        "N",
        "records of lines, and conversations, for each length (default: 8 and 12)",
    )
    subcommand.number_option(
        parser, "--seconds", "S", "time for all texts; it has the lengths that fit", kind=float
    )
    for name, what in _PLANNED.items():
        place = counts if name == "line_records" else parser
        subcommand.number_option(place, subcommand.flag(name), "N", what)


def _output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        help="folder that keeps the answer to each record; the same command continues an "
        f"interrupted run from there (default: {UNFINISHED}, which a finished run removes)",
    )
    parser.add_argument(
        "--pictures",
        metavar="DIR",
        help="folder for pictures of the study and of accuracy by depth (default: no pictures)",
    )
    parser.add_argument(
        "--from-json",
        metavar="FILE",
        help="show tables, and draw pictures, of an earlier --json output; runs no model",
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--format",
        choices=("table", "json", "csv", "markdown", "latex"),
        default="table",
        help="form of the output (default: %(default)s)",
    )
    subcommand.json_option(one, "the same as --format json")


def _run(options: argparse.Namespace) -> None:
    if options.pictures is not None:
        with _files.naming("--pictures", "a folder that can be written"):
            _files.writable_folder(Path(options.pictures))
    if options.from_json is None:
        _study(options)
        return
    from ntk_alibi.evaluation.comparing.summary import read_summary

    for name in _COMPUTED:
        if getattr(options, name) not in (None, False):
            raise ValueError(
                f"{subcommand.flag(name)} must not be given with --from-json, which shows stored "
                "results"
            )
    with _files.naming("--from-json", "a file that can be read"):
        summary = read_summary(options.from_json)
    _show(summary, options)


def _study(options: argparse.Namespace) -> None:
    """Run a study in a folder that keeps answers, and show its summary.

    The folder is --output, or `UNFINISHED`, which is removed at the end; after an error it stays if
    it has answers, and the next run continues from them.
    """
    from ntk_alibi.evaluation.comparing.store import FILE

    plan = _plan(options)
    folder = Path(UNFINISHED if options.output is None else options.output)
    with _files.naming("--output", "a folder that can be written"):
        _files.writable_folder(folder)
    with _files.only_run("--output", folder):
        if (folder / FILE).exists():
            with (folder / FILE).open("rb") as stored:
                answers = sum(1 for _ in stored) - 1  # the first line is the key of the study
            _tell(
                f"{folder} has {answers} answers of an earlier run, which are taken over for the "
                "same study; remove the folder to compute them again"
            )
        finished = False
        try:
            _show(_computed(options, plan, folder), options)
            sys.stdout.flush()  # a full disk is an error before the answers are removed
            finished = True
        finally:
            if options.output is None and (finished or not (folder / FILE).exists()):
                shutil.rmtree(folder, ignore_errors=True)


def _plan(options: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for; 1 is its training length until the model tells."""
    from ntk_alibi.evaluation.comparing import plan

    names = ("methods", "multiples", "lengths", *_PLANNED)
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.records is not None:
        given = {"topic_records": options.records, **given, "line_records": options.records}
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    preset = plan.QUICK if options.quick else {}
    length = 1 if options.train_length is None else options.train_length
    return plan.Plan(length, **{**preset, **given})


def _computed(options: argparse.Namespace, plan: Plan, folder: Path) -> Summary:
    """Return the summary of a plan; the plan is checked before the model's weights are loaded."""
    from ntk_alibi.evaluation.comparing import length_study
    from ntk_alibi.models import loading

    if options.seconds is not None:
        _checks.finite("--seconds", options.seconds, minimum=0.0, inclusive=False)
    outline, tokenizer = loading.load_outline(options.model)
    if options.train_length is None:
        plan = replace(plan, train_length=loading.train_length_or_warn(outline.config))
    study = length_study.prepare(outline, tokenizer, plan)
    model, _ = loading.load_as(options.model, options.dtype, saved=False)
    most = "" if options.seconds is None else f", as many as {options.seconds:g} seconds allow"
    _tell(f"reads {study}{most}")
    quiet = options.format == "json"
    return length_study.answer(
        model, study, folder, quiet=quiet, seconds=options.seconds, row=_tell_the_first_row
    )


def _tell_the_first_row(first: Summary) -> None:
    """Tell before longer records are read what the model answers, or that it answers nothing."""
    from ntk_alibi.evaluation.report.conclusion import answered, unanswered

    if clause := unanswered(first):
        _tell(f"warning: {clause}; if it does not know the task, Ctrl-C saves the longer ones")
    elif clause := answered(first):
        _tell(clause)


def _tell(message: str) -> None:
    """Print a line to stderr."""
    print(f"ntk-alibi: {message}", file=sys.stderr, flush=True)


def _show(summary: Summary, options: argparse.Namespace) -> None:
    """Print a summary and draw its pictures; what a reader gets ends in the verdict."""
    _print(summary, options.format)  # before files are written: a full disk loses no result
    drawn = "none; --pictures DIR draws them"
    if options.pictures is not None:
        drawn = ", ".join(map(str, _draw(summary, Path(options.pictures).resolve())))
    if options.format == "table":
        print("\n".join(["", f"pictures: {drawn}", *_last_lines(summary, options)]))


def _draw(summary: Summary, folder: Path) -> list[Path]:
    """Draw the study, and its accuracy by depth if it has one, into files of a folder."""
    from ntk_alibi.plots.study import depth_figure, study_figure
    from ntk_alibi.plots.style import style

    pictures = {folder / "study.png": study_figure}
    if not summary.by_depth.empty:
        pictures[folder / "depth.png"] = depth_figure
    for path, draw in pictures.items():
        with style("light"), _files.replacing(path) as file:
            draw(summary).savefig(file, dpi=120)
    return list(pictures)


def _print(summary: Summary, form: str) -> None:
    """Print a summary as tables, as JSON with all that it has, or as CSV with the exact values."""
    from ntk_alibi.evaluation.report import tables

    if form == "json":
        print(summary.to_json())
    elif form == "table":
        for table in tables.study_tables(summary):
            print(tables.printed(table, shutil.get_terminal_size().columns))
    else:
        frames = (tables.study_rows if form == "csv" else tables.study_tables)(summary)
        print("\n".join(tables.formatted(frame, form) for frame in frames), end="")


def _last_lines(summary: Summary, options: argparse.Namespace) -> list[str]:
    """Return what to do next, and last what the study shows.

    What it shows comes in a form that can be pasted where others read it.
    """
    from ntk_alibi.evaluation.report.conclusion import (
        better_method,
        conclusion,
        instead,
        markdown_to_share,
        unanswered,
    )

    lines = []
    own = "MODEL" if options.from_json else options.model or NANO_BLOOM
    if clause := unanswered(summary):
        return [
            f"{clause[0].upper()}{clause[1:]}: no method can help where it does not know the task.",
            *instead(own, summary.train_length),
        ]
    if better := better_method(summary):
        lines += ["to stretch it, in Python:", f'  ntk_alibi.patch(model, "{better}")']
    if not summary.retrieval.empty:
        lines += markdown_to_share(summary, own)
    return lines + conclusion(summary)
