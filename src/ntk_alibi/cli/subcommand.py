"""Parsers and options that several subcommands share."""

from __future__ import annotations

import argparse
import contextlib
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ntk_alibi import _files
from ntk_alibi.methods import (
    ADVICE,
    DYNAMIC,
    ORIGINAL,
    STATIC,
    kind_spelling,
)


class Help(argparse.HelpFormatter):
    """A formatter that keeps line breaks, and wraps lines that are wider than the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        lines = []
        for line in text.splitlines():
            words = line.lstrip()
            wrapper.initial_indent = indent + " " * (len(line) - len(words))
            wrapper.subsequent_indent = wrapper.initial_indent
            lines.append(wrapper.fill(words))
        return "\n".join(lines)


def add(
    commands: Any,
    name: str,
    run: Callable[[Any], None],
    summary: str,
    example: str,
    *,
    extra: str = "eval",
    **options: Any,
) -> argparse.ArgumentParser:
    """Add a subcommand whose --help ends in an example; `extra` is the pip extra that it needs."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=Help,
        **options,
    )
    parser.set_defaults(run=run, extra=extra)
    return parser


#: The part of --help that explains METHOD.
METHODS_HELP = f"""methods:
  {ORIGINAL}: the model as it was trained
  {", ".join(map(kind_spelling, STATIC))}:
    FACTOR is 2 x text length / training length; interpolation 1 x
  {", ".join(map(kind_spelling, DYNAMIC))}:
    the factor is RATE x text length / training length, never below 1; RATE is 2, for \
dynamic-interpolation 1, if it is left out
  recommended: {ADVICE}
  options follow after a colon: sequence, as published, for dynamic methods: all tokens have the \
factor of the whole text, so generation with a cache differs from a full pass; a share of the \
heads for flat ones; layers=0+2; logn=0.5 or ssmax=0.5
  such as ntk:4, dynamic-ntk, dynamic-flat:logn=0.5"""


def method_completer(prefix: str, **_: Any) -> list[str]:
    """Return what a method's name may begin with, for completion in the shell."""
    names = [ORIGINAL, *DYNAMIC, *(f"{kind}:" for kind in (*STATIC, *DYNAMIC))]
    return [name for name in names if name.startswith(prefix)]


def methods_option(parser: argparse.ArgumentParser, name: str, what: str, **others: Any) -> None:
    """Add the option "method" or "methods", with both spellings, and its part of --help."""
    other = "methods" if name == "method" else "method"
    if name == "methods":
        others = {"action": "extend", "nargs": "+", **others}
    action: Any = parser.add_argument(
        f"--{name}", f"--{other}", dest=name, metavar="METHOD", help=what, **others
    )
    action.completer = method_completer
    parser.epilog = f"{METHODS_HELP}\n\n{parser.epilog}"


def number_option(
    parser: Any,
    option: str,
    unit: str,
    what: str,
    default: float | None = None,
    kind: type = int,
    **others: Any,
) -> None:
    """Add an option that takes a number, or several with nargs, in a unit."""
    if default is not None:
        what += " (default: %(default)s)"
    parser.add_argument(option, type=kind, metavar=unit, default=default, help=what, **others)


def train_length_option(parser: argparse.ArgumentParser) -> None:
    """Add --train-length."""
    number_option(parser, "--train-length", "TOKENS", "training length in tokens", 2048)


def json_option(parser: Any, what: str = "print JSON instead of a table") -> None:
    """Add --json, which sets the format."""
    parser.add_argument(
        "--json", action="store_const", const="json", default="table", dest="format", help=what
    )


def print_rows(
    options: argparse.Namespace,
    result: Any,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    above: str = "",
) -> None:
    """Print a result as JSON, or as a table with some lines above it."""
    as_json = options.format == "json"
    print(_files.json_text(result) if as_json else above + _aligned(header, rows))


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal; numeric columns are aligned right."""
    columns = []
    for name, *cells in zip(header, *rows, strict=True):
        width = max(map(len, (name, *cells)))
        pad = str.rjust if all(map(_is_number, cells)) else str.ljust
        columns.append([pad(cell, width) for cell in (name, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _is_number(cell: str) -> bool:
    """Return whether a cell is a number or empty."""
    with contextlib.suppress(ValueError):
        float(cell or 0)
        return True
    return False


def flag(name: str) -> str:
    """Return the option of an argument: --train-length of train_length."""
    return f"--{name.replace('_', '-')}"


@contextlib.contextmanager
def options_in_errors(words: Collection[str]) -> Iterator[None]:
    """Replace the Python argument that an error begins with by the option that was typed."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name, _, rest = str(error).partition(" ")
        if flag(name) not in (word.partition("=")[0] for word in words):
            raise
        raise ValueError(f"{flag(name)} {rest}") from error


def model_option(parser: argparse.ArgumentParser) -> None:
    """Add --model."""
    parser.add_argument(
        "--model",
        metavar="DIR_OR_HUB_NAME",
        help="checkpoint folder or hub name (default: the embedded nano BLOOM)",
    )
