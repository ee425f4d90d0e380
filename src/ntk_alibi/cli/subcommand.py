"""What all subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def add(
    commands: Any,
    name: str,
    run: Callable[[Any], None],
    summary: str,
    example: str,
    **options: Any,
) -> argparse.ArgumentParser:
    """A subcommand whose --help ends in an example."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    parser.set_defaults(run=run)
    return parser
