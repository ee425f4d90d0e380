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
    subcommand.methods_option(parser, "methods", "methods, see below (default: none)", nargs="*")


def _run(options: argparse.Namespace) -> None:
    print(ntk_alibi.cite(*options.methods), end="")
