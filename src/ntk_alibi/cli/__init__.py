"""The command `ntk-alibi`, with one module for each subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import ntk_alibi
from ntk_alibi.cli import evaluate, info, lm_eval, plot, slopes, tune


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; print a wrong argument's error as one sentence and exit with status 2."""
    parser = argparse.ArgumentParser(prog="ntk-alibi", description=ntk_alibi.__doc__)
    parser.add_argument("--version", action="version", version=ntk_alibi.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for subcommand in (info, slopes, plot, evaluate, tune, lm_eval):
        subcommand.register(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except ImportError as error:
        advice = "" if "pip install" in str(error) else _install_advice(options.extra)
        _fail(f"{error}{advice}")
    except (ValueError, TypeError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; run the same command again to continue")


def _install_advice(extra: str) -> str:
    return f"; this command needs pip install 'ntk-alibi[{extra}]'"


def _fail(message: str) -> None:
    print(f"ntk-alibi: error: {message}", file=sys.stderr)
    sys.exit(2)
