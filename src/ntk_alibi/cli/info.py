"""Subcommand `ntk-alibi info`."""

from __future__ import annotations

import argparse
import json
from typing import Any

import ntk_alibi
from ntk_alibi.cli import subcommand


def register(commands: Any) -> None:
    """Add the subcommand."""
    summary = "show versions, instruction sets and threads"
    parser = subcommand.add(commands, "info", _run, summary, "ntk-alibi info --json")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(options: argparse.Namespace) -> None:
    info = ntk_alibi.info()
    if options.json:
        print(json.dumps(info, indent=2))
        return
    packages = info.pop("packages")
    for name, value in {**info, **packages}.items():
        text = ", ".join(value) if isinstance(value, list) else value
        print(f"{name:12} {'not installed' if text is None else text}")
