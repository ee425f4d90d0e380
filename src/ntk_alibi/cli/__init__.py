"""The command `ntk-alibi`; each subcommand is a module of this folder."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module

import ntk_alibi
from ntk_alibi import _installed
from ntk_alibi.cli import errors, subcommand

#: The subcommands in the order of the help, with their modules.
COMMANDS = {
    "demo": "demo",
    "info": "info",
    "methods": "methods",
    "slopes": "slopes",
    "eval": "evaluate",
    "lm-eval": "lm_eval",
    "export": "export",
    "bench": "bench",
    "notebooks": "notebooks",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; a wrong argument prints one sentence and exits with status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # Windows' code pages lack some of our signs
        sys.stdout.reconfigure(errors="replace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    asks_for_completions = "_ARGCOMPLETE" in os.environ
    only_one = words and words[0] in COMMANDS and not asks_for_completions
    parser = _parser(words[:1] if only_one else COMMANDS)
    if asks_for_completions:
        with contextlib.suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(parser)
    with errors.sentences("ntk-alibi"):  # --help may meet a closed pipe
        if words == ["--cmake-dir"]:
            print(_installed.cmake_dir())
            return
        options = parser.parse_args(words)
    with errors.sentences("ntk-alibi", options.extra), subcommand.options_in_errors(words):
        options.run(options)


def _parser(names: Collection[str]) -> argparse.ArgumentParser:
    """Return a parser of these subcommands; the modules of the others are not imported."""
    parser = argparse.ArgumentParser(
        prog="ntk-alibi",
        description=ntk_alibi.__doc__,
        epilog="examples:\n  ntk-alibi demo\n  ntk-alibi eval --quick\n"
        "  ntk-alibi export --method max-bias:4 -o nano-8k.gguf  (for llama.cpp)\n\n"
        f"completion in bash and zsh, after {_installed.install_line('completion')}:\n"
        '  eval "$(register-python-argcomplete ntk-alibi)"',
        formatter_class=subcommand.Help,
    )
    parser.add_argument("--version", action="version", version=ntk_alibi.__version__)
    parser.add_argument("--cmake-dir", action="store_true", help="print CMake's ntk_alibi_DIR")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in names:
        import_module(f"ntk_alibi.cli.{COMMANDS[name]}").add_command(commands)
    return parser
