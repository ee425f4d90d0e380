"""Subcommand `ntk-alibi methods`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ntk_alibi.cli import subcommand
from ntk_alibi.methods import ADVICE, DYNAMIC, ORIGINAL, STATIC, method_name, parameter_names

#: Values of the parameters in the listed names.
EXAMPLES = {"factor": 4.0, "rate": 2.0}


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    summary = "list the methods by name, with the Python object of each"
    parser = subcommand.add(commands, "methods", _run, summary, "ntk-alibi methods")
    parser.epilog = f"{subcommand.METHODS_HELP}\n\n{parser.epilog}"
    subcommand.json_option(parser)


def _run(options: argparse.Namespace) -> None:
    header = ["method", "python", "description"]
    rows = list(_methods())
    result = [dict(zip(header, row, strict=True)) for row in rows]
    above = (
        f"recommended: {ADVICE}.\n"
        "The values are examples; `ntk-alibi methods --help` explains them and all options.\n\n"
    )
    subcommand.print_rows(options, result, header, rows, above=above)


def _methods() -> Iterator[list[str]]:
    """Yield name, Python form and description of a method of each kind."""
    yield [ORIGINAL, "None", "The model as it was trained."]
    for kind, scaling in (STATIC | DYNAMIC).items():
        values = [EXAMPLES[name] for name in parameter_names(kind)]
        what = (scaling.__doc__ or "").partition("\n")[0]  # python -OO has no docstrings
        name = method_name(scaling(*values))
        yield [name, f"na.{scaling.__name__}({', '.join(map(repr, values))})", what]
