"""The harness's command line with our model and LongEval's files."""

from __future__ import annotations

import argparse
import contextlib
import glob
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from ntk_alibi import _files
from ntk_alibi.models.loading import NANO_BLOOM, checkpoint_name


def tasks_folder() -> Path:
    """Return the folder of our tasks' YAML files, for the harness's `--include_path`."""
    return Path(str(resources.files("ntk_alibi.evaluation.harness") / "tasks"))


def main(arguments: Sequence[str]) -> None:
    """Run the harness's command line with our model and our tasks available."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    from ntk_alibi.evaluation.harness import model  # noqa: F401

    setup_logging()
    command, before = HarnessCLI(), sys.argv
    sys.argv = ["lm-eval", *arguments]
    try:
        options = command.parse_args()
        if options.command == "run":
            prepare(options)
        with _harness_errors():
            command.execute(options)
    finally:
        sys.argv = before


def prepare(options: argparse.Namespace) -> None:
    """Check options of the harness's `run` before any work, and add our tasks and the tokenizer.

    The harness only logs that it could not write results, and prints a traceback for a damaged
    store of answers. Tasks that load a tokenizer, such as
    RULER's, would look for nano-bloom on the hub. A configuration file stays as it is, since
    `--metadata` would replace its metadata.
    """
    metadata = options.metadata or {}
    if options.output_path is not None:
        path = Path(options.output_path)
        with _files.naming("--output_path", "a folder that can be written"):
            _files.writable_folder(path.parent if path.suffix == ".json" else path)
    if options.use_cache is not None:
        path = Path(options.use_cache)
        with _files.naming("--use_cache", "a path in a folder that can be written"):
            folder = _files.writable_folder(path.parent)
        for stored in folder.glob(f"{glob.escape(path.name)}_rank*.db"):
            _check_store(stored)
    if options.tasks and options.include_path is None:
        options.include_path = str(tasks_folder())
    settings = {**(options.model_args or {}), **metadata}
    embedded = options.model == "ntk_alibi" and settings.get("pretrained") in (None, NANO_BLOOM)
    if embedded and options.config is None and "tokenizer" not in settings:
        options.metadata = {"tokenizer": checkpoint_name(settings.get("pretrained")), **metadata}


def _check_store(path: Path) -> None:
    """Refuse a damaged store of answers, of which the harness's threads print tracebacks."""
    with (
        _files.readable("a file of answers; remove it to compute them again", path),
        contextlib.closing(sqlite3.connect(path)) as connection,
    ):
        (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise ValueError(state)


@contextlib.contextmanager
def _harness_errors() -> Iterator[None]:
    """Turn assertions, by which the harness checks settings, into ValueErrors.

    An error of a missing package names the harness's extras.
    """
    try:
        yield
    except ImportError as error:
        advice = "this task may need pip install 'lm_eval[ruler]' or 'lm_eval[longbench]'"
        raise ImportError(f"{error}; {advice}") from error
    except AssertionError as error:
        raise ValueError(str(error)) from error
