"""Subcommand `ntk-alibi cite`."""

from __future__ import annotations

import argparse
from typing import Any

import ntk_alibi
from ntk_alibi.cli import subcommand


def register(commands: Any) -> None:
    """Add the subcommand."""
    summary = "print BibTeX of this package, and of the papers that methods come from"
    parser = subcommand.add(commands, "cite", _run, summary, "ntk-alibi cite ntk:4 knee:1024:28")
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"any of {subcommand.METHODS}")


def _run(options: argparse.Namespace) -> None:
    print(ntk_alibi.cite(*options.methods), end="")
