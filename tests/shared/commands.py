"""Commands: those that end with an error, on a full disk, beside another run, with other tasks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from ntk_alibi.cli import main


def of_linux(words: str) -> str:
    """Return what Linux says of an error, or nothing on Windows, which says it otherwise."""
    return "" if os.name == "nt" else words


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints to stderr before it ends with the status of wrong arguments."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


def assert_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Assert that a command ends with one sentence, which holds the message, or matches it."""
    error = error_of(arguments, capsys)
    assert error.startswith("ntk-alibi: error: ")
    assert message in error or re.search(message, error)
    assert error.count("\n") == 1


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """Let no file of this process grow beyond a number of bytes.

    Modules imported here leave no bytecode, because Python would store it cut off, and later
    processes could not read it.
    """
    resource = pytest.importorskip("resource", reason="Windows has no such limits")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with patch.object(sys, "dont_write_bytecode", True):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


HOLDER = """
import sys
from ntk_alibi import _files
with _files.only_run("--output", sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_run(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has the lock of a folder."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        yield run


def search_tasks_in(folder: Path, patched: pytest.MonkeyPatch) -> None:
    """Let the harness search a folder, not its own tasks, whose thousands of files take seconds."""
    import lm_eval.tasks.manager

    patched.setattr(lm_eval.tasks.manager, "__file__", str(folder / "manager.py"))
