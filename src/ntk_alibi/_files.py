"""Reading and writing users' files, with errors that name the file; commands for their shells."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import math
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def command_line(words: Sequence[str]) -> str:
    """Return a command as the shell of this system reads it."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


@contextlib.contextmanager
def readable(expected: str, source: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the errors that other libraries raise for damaged files into a ValueError with the name.

    Readers such as pickle, torch.load and transformers do not check what they read. A damaged file
    gives an error of any type, such as SafetensorError, RuntimeError, KeyError or EOFError.
    """
    try:
        yield
    except (ImportError, MemoryError, OSError):  # the contents are not the cause
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{os.fspath(source)!r} must be {expected}: {reason}") from error


@contextlib.contextmanager
def naming(argument: str, expected: str) -> Iterator[None]:
    """Turn the error of a file or folder into a ValueError that names the argument."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # such as a full disk: no argument is wrong
            raise
        raise ValueError(
            f"{argument} must be {expected}, got {os.fspath(error.filename)!r}: {error.strerror}"
        ) from error


def read_json(path: str | os.PathLike[str]) -> Any:
    with readable("a JSON file", path):
        return parse_json(Path(path).read_bytes())


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise a ValueError for text that is nested too deeply for Python, too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("too many nested brackets") from None


def json_text(value: Any, indent: int | None = None) -> str:
    """Format a value as strict JSON: NaN and infinity, which JSON lacks, become null.

    Data frames become lists of their rows.
    """
    return json.dumps(_with_null(value), indent=indent, allow_nan=False)


def _with_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_null(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_with_null(entry) for entry in value]
    if hasattr(value, "to_dict"):
        return _with_null(value.to_dict("records"))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder unless it exists, and check before any work that files can be made in it.

    Raises:
        OSError: the folder or files in it cannot be made.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; the file or folder written there replaces `path` at the end.

    After an error, such as a full disk, or Ctrl-C, `path` is as before and nothing else is left.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    whole = Path(path).resolve()  # the target of a link
    prefix = f".{whole.name}-"
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=whole.parent) as scratch:
            new, earlier = Path(scratch, whole.name), Path(scratch, f"{whole.name}.earlier")
            yield new
            if whole.is_dir():  # a folder can only replace an empty folder
                whole.rename(earlier)
            try:
                new.replace(whole)
            except BaseException:
                if earlier.exists():
                    earlier.rename(whole)
                raise
    except OSError as error:
        # Unlike errors of opening, errors of writing name no file.
        if error.filename is not None and prefix not in str(error.filename):
            raise
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error


@contextlib.contextmanager
def only_run(argument: str, folder: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a folder against other runs while the block runs.

    The process that has the lock may take it again. The system releases the lock when the process
    ends, however it ends. A folder that the block has emptied goes.

    Raises:
        ValueError: another process has the lock; the message tells which one and since when.
        OSError: the lock cannot be written.
    """
    from filelock import FileLock, Timeout

    place = Path(folder) / ".run"
    holder = Path(f"{place}.txt")  # a file of its own, since Windows lets nobody read a locked one
    lock = FileLock(f"{place}.lock", is_singleton=True)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        known = holder.read_text() if holder.exists() else ""
        raise ValueError(
            f"{argument} must be a folder that no other run uses, got {os.fspath(folder)!r}, in "
            f"use by {known or 'another process'}"
        ) from None
    try:
        now = datetime.datetime.now().isoformat(" ", "seconds")
        holder.write_text(f"process {os.getpid()} on {platform.node()} since {now}")
        yield
    finally:
        lock.release()
        with contextlib.suppress(OSError):
            Path(folder).rmdir()  # once it is empty: Windows removes no lock that is held
