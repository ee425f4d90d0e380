"""The command `ntk-alibi`, with one module for each subcommand."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

import ntk_alibi
from ntk_alibi import _installed
from ntk_alibi.cli import (
    bench,
    errors,
    evaluate,
    explore,
    export,
    info,
    lm_eval,
    notebooks,
    slopes,
    subcommand,
    tune,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; print a wrong argument's error as one sentence and exit with status 2."""
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
        _complete(parser)
    with errors.sentences("ntk-alibi"):  # --help may meet a closed pipe
        options = parser.parse_args(arguments)
    options.words = list(sys.argv[1:] if arguments is None else arguments)
    with errors.sentences("ntk-alibi", options.extra), subcommand.options_in_errors(options.words):
        options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ntk-alibi",
        description=ntk_alibi.__doc__,
        epilog="examples:\n  ntk-alibi eval --quick\n"
        "  ntk-alibi export --method max-bias:4 -o nano-8k.gguf  (for llama.cpp)\n\n"
        f"completion in bash and zsh, after {_installed.install_line('completion')}:\n"
        '  eval "$(register-python-argcomplete ntk-alibi)"',
        formatter_class=subcommand.Help,
    )
    parser.add_argument("--version", action="version", version=ntk_alibi.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (info, slopes, explore, evaluate, tune, lm_eval, export, bench, notebooks):
        module.register(commands)
    return parser


def _complete(parser: argparse.ArgumentParser) -> None:
    """Print completions of a command line for the shell, if argcomplete is installed."""
    with contextlib.suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser)
