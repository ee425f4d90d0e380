"""Subcommand `ntk-alibi eval`."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi import _files
from ntk_alibi.cli import subcommand
from ntk_alibi.methods import ORIGINAL
from ntk_alibi.models.loading import NANO_BLOOM

if TYPE_CHECKING:
    from ntk_alibi.evaluation.comparing.summary import Summary

#: The file of the picture and the section of the document, by default.
PICTURE, SECTION = "ntk-alibi-eval.png", "study"

#: Options that set the field of this name in the plan of a study, with their help.
_PLANNED = {
    "line_records": "records of lines for each length (default: 8)",
    "topic_records": "conversations for each length (default: 12)",
    "passkey_records": "records of prose with one pass key in it, for each length (default: none)",
    "multikey_records": "records of prose with several keys in it, for each length (default: none)",
    "other_line_records": "records of lines with names that the nano BLOOM was not trained on, "
    "for each length (default: none)",
    "prose_windows": "windows of prose of the greatest length; 0 for none (default: 8)",
    "seed": "seed of the records",
}

#: Options that have no effect on stored results.
_COMPUTED = (
    *("quick", "demo", "multiples", "lengths", "records", *_PLANNED),
    *("model", "methods", "train_length", "output"),
)


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "eval",
        _run,
        "compare methods on a model beyond its training length",
        "ntk-alibi eval --quick\n"
        "  ntk-alibi eval --model bigscience/bloom-560m --methods original ntk:2",
    )
    small = parser.add_mutually_exclusive_group()
    small.add_argument("--quick", action="store_true", help="small run of about a minute")
    small.add_argument(
        "--demo",
        action="store_true",
        help="lines alone, up to 16 training lengths, where methods differ most: a few minutes",
    )
    subcommand.model_option(parser)
    subcommand.methods_option(
        parser,
        "methods",
        "methods to compare, see below (default: original and five others)",
    )
    subcommand.answers_options(parser)
    _study_options(parser)
    parser.add_argument("--tasks", nargs="+", type=_to_lm_eval, help=argparse.SUPPRESS)


def _study_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study of lines, conversations and prose."""
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help=f"PNG, SVG or PDF file of the picture (default: {PICTURE})",
    )
    parser.add_argument(
        "--from-json",
        metavar="FILE",
        help="show tables and picture of an earlier --json output; runs no model",
    )
    subcommand.number_option(
        parser,
        "--multiples",
        "X",
        "lengths of the records in training lengths (default: 1 1.5 2 3 4)",
        kind=float,
        nargs="+",
    )
    subcommand.number_option(
        parser,
        "--lengths",
        "TOKENS",
        "lengths of the records in tokens, each at most 2^22, in place of --multiples",
        nargs="+",
    )
    subcommand.number_option(
        parser,
        "--records",
        "N",
        "records of lines, and conversations, for each length (default: 8 and 12)",
    )
    for name, what in _PLANNED.items():
        subcommand.number_option(parser, subcommand.flag(name), "N", what)
    parser.add_argument(
        "--document",
        metavar="FILE",
        help="Markdown file that gets the tables, between <!-- SECTION: begin --> and end",
    )
    parser.add_argument("--section", help=f"section of the document (default: {SECTION})")


def _to_lm_eval(task: str) -> None:
    """Refuse a task of the harness, with the command that runs it."""
    raise argparse.ArgumentTypeError(
        "a task of lm-evaluation-harness must be run by `ntk-alibi lm-eval --model ntk_alibi "
        f"--model_args pretrained=DIR,method=ntk:4 --tasks {task}`, once for each method"
    )


def _run(options: argparse.Namespace) -> None:
    _check_together(options)
    for path in _pictures(options):
        subcommand.check_picture("--plot", path)
    if options.document is not None:
        from ntk_alibi.evaluation.report import markdown

        with _files.naming("--document", "a file that can be read"):
            markdown.section(Path(options.document), options.section or SECTION)
    if options.from_json is None:
        _study(options)
        return
    from ntk_alibi.evaluation.comparing.summary import read_summary

    with _files.naming("--from-json", "a file that can be read"):
        summary = read_summary(options.from_json)
    _show(summary, options)


def _check_together(options: argparse.Namespace) -> None:
    """Refuse options that would have no effect beside the others."""

    def given(names: Collection[str]) -> list[str]:
        values = ((name, getattr(options, name)) for name in names)
        return [name for name, value in values if value is not None and value is not False]

    if options.section is not None and options.document is None:
        raise ValueError(
            f"--document must be given with --section, got only --section {options.section}"
        )
    for name, others, why in (
        ("lengths", ("multiples",), "which sets the same"),
        ("records", ("line_records",), "which sets the same"),
        ("from_json", _COMPUTED, "which shows stored results"),
    ):
        if given([name]) and (idle := given(others)):
            raise ValueError(
                f"{subcommand.flag(idle[0])} must not be given with {subcommand.flag(name)}, {why}"
            )


def _study(options: argparse.Namespace) -> None:
    """Run a study, and show its summary in the first process."""
    plan = _plan(options)

    def compute(folder: Path) -> Summary:
        from ntk_alibi.evaluation.comparing import length_study

        outline, tokenizer, train_length = subcommand.load_outline(options)
        whole = replace(plan, train_length=train_length)
        study = length_study.prepare(outline, tokenizer, whole)
        model, name = subcommand.load_model(options)
        subcommand.warn_if_unanswered(options, model, tokenizer, whole, folder, name)
        quiet = options.format == "json"
        return length_study.answer(model, tokenizer, study, folder, quiet=quiet, name=name)

    subcommand.collect(options, compute, _show)


def _plan(options: argparse.Namespace) -> Any:
    """Return the plan that the options ask for; 1 is its training length until the model tells."""
    from ntk_alibi.evaluation.comparing import plan

    names = ("methods", "multiples", "lengths", *_PLANNED)
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.records is not None:
        given = {"topic_records": options.records, **given, "line_records": options.records}
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    preset = plan.QUICK if options.quick else plan.DEMO if options.demo else {}
    length = 1 if options.train_length is None else options.train_length
    return plan.Plan(length, **{**preset, **given})


def _pictures(options: argparse.Namespace) -> tuple[Path, Path]:
    """Return two paths: the picture of the study, and the picture of accuracy by depth."""
    plot = Path(PICTURE if options.plot is None else options.plot)
    return plot, plot.parent / f"{plot.stem}-depth{plot.suffix}"


def _show(summary: Summary, options: argparse.Namespace) -> None:
    from ntk_alibi.evaluation.report import markdown, tables
    from ntk_alibi.evaluation.report.conclusion import conclusion, instead, unanswered
    from ntk_alibi.plots.study import depth_figure, study_figure
    from ntk_alibi.plots.style import style

    whole, by_depth = _pictures(options)
    pictures = [(study_figure, whole)]
    if not summary.by_depth.empty:
        pictures.append((depth_figure, by_depth))
    # Printed before files are written: a full disk loses no result.
    for_a_reader = subcommand.print_tables(options, summary, tables.study_tables, tables.study_rows)
    for draw, path in pictures:
        with style("light"), _files.replacing(path) as file:
            draw(summary).savefig(file, dpi=120)
    if options.document is not None:
        parts = [
            markdown.describe_machine(),
            f"    {_files.command_line(['ntk-alibi', *options.words])}",
        ]
        parts += [tables.formatted(x, "markdown").strip() for x in tables.study_tables(summary)]
        section = options.section or SECTION
        markdown.replace_section(Path(options.document), section, "\n\n".join(parts))
    if not for_a_reader:
        return
    paths = ", ".join(str(path.resolve()) for _, path in pictures)
    clause = unanswered(summary)
    lines = ["", *([] if clause else conclusion(summary)), f"pictures: {paths}"]
    examples = [next(iter(cells.values())) for cells in summary.commands.values() if cells]
    if examples:
        lines += ["command that repeats one cell (--json lists all commands):", examples[-1]]
    if clause:
        own = "MODEL" if options.from_json else options.model or NANO_BLOOM
        lines += [
            f"{clause[0].upper()}{clause[1:]}: no method can help where it does not know the task.",
            *instead(own, summary.train_length),
        ]
    elif options.from_json is None:
        lines += _next_steps(summary, options.model)
    print("\n".join(lines))


def _next_steps(summary: Summary, model: str | None) -> list[str]:
    """Return lines that explain how to stretch a model, and how to measure the user's own first."""
    from ntk_alibi.evaluation.report.conclusion import choice, is_better

    chosen = choice(summary)
    if chosen is None or not is_better(summary):
        return []
    measure = [
        "to measure your decoder with ALiBi, by its folder or hub name:",
        "  ntk-alibi eval --quick --model MODEL --methods "
        f"{_files.command_line([ORIGINAL, chosen])}",
    ]
    return [
        *(measure if model is None else []),
        "to stretch it, in Python:",
        f'  ntk_alibi.patch(model, "{chosen}")',
    ]
