"""The command `ntk-alibi`, with one module for each subcommand."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module

import ntk_alibi
from ntk_alibi import _installed
from ntk_alibi.cli import errors, subcommand

#: The subcommands in the order of the help, with their modules.
COMMANDS = {
    "info": "info",
    "methods": "methods",
    "slopes": "slopes",
    "explore": "explore",
    "eval": "evaluate",
    "tune": "tune",
    "lm-eval": "lm_eval",
    "export": "export",
    "bench": "bench",
    "notebooks": "notebooks",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; print a wrong argument's error as one sentence and exit with status 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    asks_for_completions = "_ARGCOMPLETE" in os.environ
    known = words[:1] if words and words[0] in COMMANDS and not asks_for_completions else COMMANDS
    parser = _parser(known)
    if asks_for_completions:
        _complete(parser)
    with errors.sentences("ntk-alibi"):  # --help may meet a closed pipe
        options = parser.parse_args(words)
    options.words = words
    with errors.sentences("ntk-alibi", options.extra), subcommand.options_in_errors(words):
        options.run(options)


def _parser(known: Collection[str]) -> argparse.ArgumentParser:
    """Return a parser of some subcommands, whose modules alone are imported."""
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
    for name in known:
        import_module(f"ntk_alibi.cli.{COMMANDS[name]}").register(commands)
    return parser


def _complete(parser: argparse.ArgumentParser) -> None:
    """Print completions of a command line for the shell, if argcomplete is installed."""
    with contextlib.suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser)
