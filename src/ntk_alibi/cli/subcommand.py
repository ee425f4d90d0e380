"""Parsers and options that several subcommands share."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi import _checks, _files
from ntk_alibi.methods import (
    ADVICE,
    DYNAMIC,
    ORIGINAL,
    STATIC,
    Method,
    kind_spelling,
    parse_method,
)

if TYPE_CHECKING:
    from pandas import DataFrame


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
    FACTOR is 2 x text length / training length; interpolation 1 x; knee 7 x, and START half of \
the training length
  {", ".join(map(kind_spelling, DYNAMIC))}:
    the factor is RATE x text length / training length; RATE is 2, for dynamic-interpolation 1, \
for dynamic-knee 7
  recommended: {ADVICE}
  options follow after a colon: query for dynamic methods, recommended: the factor of a token \
follows the length of its prefix, so generation with a cache equals a full pass (sequence, as \
published, does not); a share of the heads for flat ones; layers=0+2; logn=0.5 or ssmax=0.5
  such as ntk:4, dynamic-ntk:2:query, dynamic-flat:2:query:logn=0.5, knee:1024:28"""


def method_completer(prefix: str, **_: Any) -> list[str]:
    """Return what a method's name may begin with, for completion in the shell."""
    names = [ORIGINAL, *(f"{kind}:" for kind in (*STATIC, *DYNAMIC))]
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


def print_tables(
    options: argparse.Namespace,
    result: Any,
    tables: Callable[[Any], Sequence[DataFrame]],
    rows: Callable[[Any], Sequence[DataFrame]],
) -> bool:
    """Print a result by --format; return whether it was printed as tables for a terminal.

    Args:
        options: the options.
        result: the result, a dataclass; JSON has all of it.
        tables: returns its tables, whose cells are texts.
        rows: returns its data frames, for CSV.
    """
    if options.format == "json":
        print(_files.json_text(vars(result)))
        return False
    from ntk_alibi.evaluation.report.tables import formatted, printed

    frames = (rows if options.format == "csv" else tables)(result)
    if options.format != "table":
        print("\n".join(formatted(frame, options.format) for frame in frames), end="")
        return False
    for frame in frames:
        print(printed(frame, shutil.get_terminal_size().columns))
    return True


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


def check_methods(names: Iterable[str], train_length: int | None) -> None:
    """Check the names of methods before a model is loaded, which may have the training length."""
    for name in names:
        parse_method(name, 2 if train_length is None else train_length)


def bias_method(name: str, train_length: int) -> Method:
    """Return the method of a name, which must not have log-n: that is no part of a bias."""
    method = parse_method(name, train_length)
    if method.log_n is not None:
        raise ValueError(f"method must be a scaling here, without a factor of scores, got {name!r}")
    return method


#: Endings of picture files.
PICTURES = (".png", ".svg", ".pdf")


def check_picture(option: str, path: Path, formats: Collection[str] = PICTURES) -> None:
    """Check before any work that an option names a picture file that can be written."""
    _checks.choice(f"the ending of {option}", path.suffix.lower(), formats)
    with _files.naming(option, "a file that can be written"):
        _files.check_writable(path)


#: The folder that keeps the answers of an unfinished run, by default.
UNFINISHED = ".ntk-alibi-eval.unfinished"


def model_option(parser: argparse.ArgumentParser) -> None:
    """Add --model."""
    parser.add_argument(
        "--model",
        metavar="DIR_OR_HUB_NAME",
        help="checkpoint folder or hub name (default: the embedded nano BLOOM)",
    )


def dtype_option(parser: argparse.ArgumentParser) -> None:
    """Add --dtype."""
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="dtype of the model's weights (default: %(default)s)",
    )


def answers_options(parser: argparse.ArgumentParser) -> None:
    """Add --train-length, --dtype, -o and --format, for commands that collect answers."""
    number_option(
        parser, "--train-length", "TOKENS", "training length in tokens (default: from the config)"
    )
    dtype_option(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        help="folder that keeps the answer to each record; the same command continues an "
        f"interrupted run from there (default: {UNFINISHED}, which a finished run removes)",
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--format",
        choices=("table", "json", "csv", "markdown", "latex"),
        default="table",
        help="form of the output (default: %(default)s)",
    )
    json_option(one, "the same as --format json")


def tell(message: str) -> None:
    """Print a line to stderr, in the first process of a job."""
    if os.environ.get("RANK", "0") == "0":
        print(f"ntk-alibi: {message}", file=sys.stderr, flush=True)


def load_outline(options: argparse.Namespace) -> tuple[Any, Any, int]:
    """Return the model without its weights, its tokenizer and its training length."""
    from ntk_alibi.models import loading

    outline, tokenizer, of_model = loading.load_outline(options.model)
    return outline, tokenizer, of_model if options.train_length is None else options.train_length


def load_model(options: argparse.Namespace) -> tuple[Any, str]:
    """Return the model and its name."""
    from ntk_alibi.models import loading

    model, *_ = loading.load_as(options.model, options.dtype, saved=False)
    return model, options.model or loading.NANO_BLOOM


def warn_if_unanswered(
    options: argparse.Namespace, model: Any, tokenizer: Any, plan: Any, folder: Path, name: str
) -> None:
    """Tell before longer records are read that a user's model does not know the task.

    The processes of a job would need a record each, so there the end of the run tells it.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return
    from ntk_alibi.evaluation.comparing import length_study
    from ntk_alibi.evaluation.report.conclusion import unanswered

    few = None if options.model is None else length_study.probe(plan)
    if few is None:
        return
    quiet = options.format == "json"
    found = length_study.evaluate(model, tokenizer, few, folder, quiet=quiet, name=name)
    if clause := unanswered(found):
        tell(f"warning: {clause}; if it does not know the task, Ctrl-C saves the longer ones")


def collect(
    options: argparse.Namespace,
    compute: Callable[[Path], Any],
    show: Callable[[Any, argparse.Namespace], None],
) -> None:
    """Compute a result in a folder that keeps answers, and show it in the first process.

    The folder is --output, or `UNFINISHED`, which is removed at the end; after an error it stays if
    it has answers, and the next run continues from them.
    """
    folder = Path(UNFINISHED if options.output is None else options.output)
    with _files.naming("--output", "a folder that can be written"):
        _files.writable_folder(folder)
    from ntk_alibi.evaluation.harness import stored_answers
    from ntk_alibi.evaluation.harness.run import is_first_process

    with _files.only_run("--output", folder):
        if stored := sum(map(stored_answers.count_answers, folder.glob("*.db"))):
            tell(
                f"{folder} has {stored} answers of an earlier run, which are taken over for the "
                "same model, method and records; remove the folder to compute them again"
            )
        try:
            result = compute(folder)
            if is_first_process():
                show(result, options)
            sys.stdout.flush()  # a full disk is an error before the answers are removed
            finished = is_first_process()
        except BaseException:
            finished = not any(folder.glob("*.db"))
            raise
        finally:
            if finished and options.output is None:
                shutil.rmtree(folder, ignore_errors=True)
        is_first_process()  # no other process begins the next run in a folder that goes
