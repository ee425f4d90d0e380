"""Subcommand `ntk-alibi tune`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi import _files
from ntk_alibi.cli import subcommand
from ntk_alibi.methods import ORIGINAL, RECOMMENDED
from ntk_alibi.models.loading import NANO_BLOOM

if TYPE_CHECKING:
    from ntk_alibi.evaluation.comparing.tuning import Tuning


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "tune",
        _run,
        "search for the best method for a model and a text length, and tell how sure the choice is",
        "ntk-alibi tune --length 8192\n"
        "  ntk-alibi tune --model bigscience/bloom-560m --length 4096 \\\n"
        "      --methods ntk:2 ntk:4",
    )
    subcommand.number_option(
        parser,
        "--length",
        "TOKENS",
        "length of the texts in tokens, at most 2^22",
        required=True,
    )
    subcommand.model_option(parser)
    subcommand.methods_option(
        parser,
        "methods",
        "candidates, see below (default: a search over kinds, factors, shares, knees, layers and "
        "log-n)",
    )
    subcommand.number_option(
        parser,
        "--budget",
        "N",
        "number of methods to try without --methods (default: 32)",
    )
    subcommand.number_option(parser, "--records", "N", "number of records of lines", 8)
    subcommand.number_option(parser, "--windows", "N", "number of windows of prose", 4)
    subcommand.number_option(parser, "--seed", "N", "seed of the random records", 7)
    subcommand.answers_options(parser)


def _run(options: argparse.Namespace) -> None:
    from ntk_alibi.evaluation.comparing import length_study, tuning

    settings = tuning.Search(
        options.length,
        1 if options.train_length is None else options.train_length,
        tuple(options.methods or ()),
        options.records,
        options.windows,
        options.seed,
        options.budget,
    )

    def compute(folder: Path) -> tuning.Tuning:
        outline, tokenizer, train_length = subcommand.load_outline(options)
        whole = replace(settings, train_length=train_length)
        length_study.prepare(outline, tokenizer, whole.plan(whole.candidates, held_out=False))
        if options.length <= train_length:
            subcommand.tell(
                f"warning: --length {options.length} is within the training length of "
                f"{train_length} tokens, which the model reads without stretching"
            )
        model, name = subcommand.load_model(options)
        few = whole.plan((ORIGINAL,), held_out=False, share=tuning.SCREENED)
        subcommand.warn_if_unanswered(options, model, tokenizer, few, folder, name)
        quiet = options.format == "json"
        return tuning.search(model, tokenizer, whole, folder, quiet=quiet, name=name)

    subcommand.collect(options, compute, _show)


def _show(result: Tuning, options: argparse.Namespace) -> None:
    from ntk_alibi.evaluation.comparing import tuning
    from ntk_alibi.evaluation.report import tables
    from ntk_alibi.evaluation.report.cells import with_half_width
    from ntk_alibi.evaluation.report.conclusion import UNKNOWN, instead, percent

    if not subcommand.print_tables(
        options,
        result,
        lambda found: [tables.tuning_table(found)],
        lambda found: [tables.with_title(found.candidates, "candidates")],
    ):
        return
    tried = result.trace["method"].nunique()
    sure = f"chosen in {100 * result.sure:.0f} % of resamplings"
    print(f"chosen from {tried} methods: {result.chosen} ({sure})")
    for entry in result.fresh.to_dict("records"):
        print(f"on held-out records, {entry['method']}: {percent(entry)}")
    for entry in result.paired.to_dict("records"):
        points = with_half_width(100 * entry["gain"], 100 * entry["gain_half_width"], 1)
        nats = with_half_width(entry["nats"], entry["nats_half_width"], 3)
        pair = f"{entry['method']} minus {entry['against']}"
        print(f"{pair}, paired: {points} points, {nats} nats")
    for other in tuning.contradicting_methods(result.fresh, result.paired):
        print(
            f"warning: on held-out records {other} answers more questions than {result.chosen}, "
            "beyond the 95 % interval: they contradict the choice"
        )
    if result.candidates["half_width"].isna().all():
        print("the interval of the nats needs at least two windows of prose (--windows)")
    most = max(frame["accuracy"].max() for frame in (result.candidates, result.fresh))
    if most <= UNKNOWN:
        print(
            f"The model answers at most {100 * most:.0f} % of the questions of these records at "
            f"{result.length} tokens: no method can help where it does not know the task."
        )
        print("\n".join(instead(options.model or NANO_BLOOM, result.train_length)))
    elif result.answer == ORIGINAL:
        print("keep the original: no method was better than it by more than chance")
    else:
        print(f"use {result.answer}; in a model's config: {_files.json_text(result.config)}")
        if tuning.is_level(result.fresh, result.paired):
            print(f"{RECOMMENDED} is level with it, and suits texts of other lengths, too")
