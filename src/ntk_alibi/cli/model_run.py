"""Options and steps that the subcommands share that run a model."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from ntk_alibi import _files
from ntk_alibi.cli import subcommand

#: Folder in the working directory that keeps the answers of an unfinished run.
UNFINISHED = ".ntk-alibi-eval.unfinished"


def model_option(parser: argparse.ArgumentParser) -> None:
    """Add --model, a checkpoint."""
    parser.add_argument(
        "--model",
        metavar="DIR_OR_HUB_NAME",
        help="checkpoint folder or hub name (default: the embedded nano BLOOM)",
    )


def dtype_option(parser: argparse.ArgumentParser) -> None:
    """Add --dtype, that of a model's weights."""
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="dtype of the model's weights (default: %(default)s)",
    )


def answers_options(parser: argparse.ArgumentParser) -> None:
    """Add --train-length, --dtype, -o and --format, for commands that collect answers."""
    parser.add_argument(
        "--train-length",
        type=int,
        metavar="TOKENS",
        help="training length in tokens (default: from the config)",
    )
    dtype_option(parser)
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="folder that keeps the answer to each record"
    )
    subcommand.format_option(parser)


def check_answers_options(options: argparse.Namespace) -> None:
    """Check lengths, methods and the folder of answers before any work."""
    subcommand.check_lengths(options)
    subcommand.check_methods(options.methods or ())
    if options.output is not None:
        with _files.naming("--output", "a folder that can be written"):
            _files.writable_folder(options.output)


def train_length(options: argparse.Namespace, of_model: int) -> int:
    """Return --train-length, or the model's own training length if it is not given."""
    given: int | None = options.train_length
    return of_model if given is None else given


@contextlib.contextmanager
def answers_folder(output: str | None) -> Iterator[Path]:
    """Yield the folder of answers: the user's, or a temporary one that is removed at the end.

    An error leaves it, so that the next run continues from the answers.
    """
    from ntk_alibi.evaluation.harness.run import is_first_process

    folder = Path(UNFINISHED if output is None else output)
    yield folder
    sys.stdout.flush()  # a full disk is an error before the answers are removed
    if is_first_process() and output is None:
        shutil.rmtree(folder, ignore_errors=True)
