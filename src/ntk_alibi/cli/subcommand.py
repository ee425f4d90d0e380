"""What all subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


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
    """A subcommand whose --help ends in an example; extra is what pip installs for it."""
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


#: What --method and --methods take.
METHODS = "original, interpolation:A, ntk:A, dynamic-ntk:RATE or dynamic-interpolation:RATE"


def length_option(parser: argparse.ArgumentParser) -> None:
    """How long the text is."""
    parser.add_argument("--length", type=int, help="tokens of the text, for the dynamic methods")


def train_length_option(parser: argparse.ArgumentParser) -> None:
    """How long the model's texts were."""
    parser.add_argument(
        "--train-length", type=int, default=2048, help="tokens trained at (%(default)s)"
    )
