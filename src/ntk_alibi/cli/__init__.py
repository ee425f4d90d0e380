"""The command `ntk-alibi`, with one module for each subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import ntk_alibi
from ntk_alibi import _command_line
from ntk_alibi.cli import (
    cite,
    evaluate,
    explore,
    info,
    lm_eval,
    notebooks,
    plot,
    slopes,
    tune,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; print a wrong argument's error as one sentence and exit with status 2."""
    parser = argparse.ArgumentParser(prog="ntk-alibi", description=ntk_alibi.__doc__)
    parser.add_argument("--version", action="version", version=ntk_alibi.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for subcommand in (
        info,
        slopes,
        plot,
        explore,
        evaluate,
        tune,
        lm_eval,
        notebooks,
        cite,
    ):
        subcommand.register(commands)
    options = parser.parse_args(arguments)
    options.words = list(sys.argv[1:] if arguments is None else arguments)
    with _command_line.sentences("ntk-alibi", options.extra):
        options.run(options)
