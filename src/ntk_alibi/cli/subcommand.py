"""Parsers and options that several subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.evaluation.comparing.methods import DYNAMIC, ORIGINAL, STATIC


def add(
    commands: Any,
    name: str,
    run: Callable[[Any], None],
    summary: str,
    example: str,
    *,
    extra: str = "eval",
    **options: Any,
) -> argparse.ArgumentParser:
    """Add a subcommand whose --help ends in an example; `extra` is the pip extra that it needs."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    parser.set_defaults(run=run, extra=extra)
    return parser


_FORMS = (*(f"{kind}:A" for kind in STATIC), *(f"{kind}:RATE" for kind in DYNAMIC))

#: Values of --method and --methods.
METHODS = ", ".join([ORIGINAL, *_FORMS])


def length_option(parser: argparse.ArgumentParser) -> None:
    """Add --length, the number of tokens of the text."""
    parser.add_argument("--length", type=int, help="text length in tokens, for dynamic methods")


def train_length_option(parser: argparse.ArgumentParser) -> None:
    """Add --train-length, the length at which the model was trained."""
    parser.add_argument(
        "--train-length",
        type=int,
        default=2048,
        help="training length in tokens (default: %(default)s)",
    )


def check_train_length(options: argparse.Namespace) -> None:
    """Check --train-length, if it is given, before a model is loaded."""
    if options.train_length is not None:
        _checks.integer("--train-length", options.train_length, minimum=1)


def train_length(options: argparse.Namespace, of_model: int) -> int:
    """Return --train-length, or the model's own training length if it is not given."""
    given: int | None = options.train_length
    return of_model if given is None else given
