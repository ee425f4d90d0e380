"""Subcommand `ntk-alibi info`."""

from __future__ import annotations

import argparse
from typing import Any

import ntk_alibi
from ntk_alibi.cli import subcommand


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    summary = "show versions, instruction sets and threads"
    parser = subcommand.add(commands, "info", _run, summary, "ntk-alibi info --json")
    subcommand.json_option(parser)


def _run(options: argparse.Namespace) -> None:
    info = ntk_alibi.info()
    rows = []
    for name, value in {**info, **info["packages"]}.items():
        text = ", ".join(value) if isinstance(value, list) else value
        if name != "packages":
            rows.append([name, "not installed" if text is None else str(text)])
    subcommand.print_rows(options, info, ["name", "value"], rows)
