"""The command `ntk-alibi`: one module a subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import ntk_alibi
from ntk_alibi.cli import evaluate, info, lm_eval, plot, slopes, tune


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; a mistake in the arguments ends in one sentence and exit status 2."""
    parser = argparse.ArgumentParser(prog="ntk-alibi", description=ntk_alibi.__doc__)
    parser.add_argument("--version", action="version", version=ntk_alibi.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for subcommand in (info, slopes, plot, evaluate, tune, lm_eval):
        subcommand.register(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except ImportError as error:
        told = "" if "pip install" in str(error) else _needs(options.extra)
        _fail(f"{error}{told}")
    except (ValueError, TypeError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on where this one stopped")


def _needs(extra: str) -> str:
    return f"; this command needs pip install 'ntk-alibi[{extra}]'"


def _fail(message: str) -> None:
    print(f"ntk-alibi: error: {message}", file=sys.stderr)
    sys.exit(2)
