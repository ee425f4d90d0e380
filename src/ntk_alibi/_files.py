"""Reading and writing the users' files, with errors that name the file."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def readable(expected: str, source: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what other libraries raise for damaged contents into a ValueError that names the source.

    Readers such as pickle, torch.load and transformers do not check what they read. A damaged file
    gives an error of any type, such as SafetensorError, RuntimeError, KeyError or EOFError.
    """
    try:
        yield
    except (ImportError, MemoryError, OSError):  # not for what the file holds
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{os.fspath(source)!r} must be {expected}: {reason}") from error


@contextlib.contextmanager
def naming(argument: str, expected: str) -> Iterator[None]:
    """Turn the error of a file or folder into a ValueError that names the argument it came from."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # such as a full disk, of which no argument is wrong
            raise
        raise ValueError(
            f"{argument} must be {expected}, got {os.fspath(error.filename)!r}: {error.strerror}"
        ) from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file."""
    with readable("a JSON file", path):
        return parse_json(Path(path).read_bytes())


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; refuse text that is nested too deeply for Python, too, with a ValueError."""
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
    """Make a folder if it does not exist, and check before any work that files can be made in it.

    Raises:
        OSError: they cannot.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check before any work that `replacing` can write a file; leave it as it is.

    Raises:
        OSError: it cannot.
    """
    there = os.path.lexists(path)
    with open(path, "ab"), tempfile.TemporaryFile(dir=Path(path).resolve().parent):
        pass
    if not there:
        Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path for a new file or folder, which takes the place of `path` once it is written.

    An error, such as a full disk, or Ctrl-C leaves what was there, and no half of the new one.

    Raises:
        OSError: it cannot be written; the error names the path that it was for.
    """
    whole = Path(path).resolve()  # of a link, what it leads to
    prefix = f".{whole.name}-"
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=whole.parent) as scratch:
            new, earlier = Path(scratch, whole.name), Path(scratch, f"{whole.name}.earlier")
            yield new
            if whole.is_dir():  # a folder takes the place of an empty one only
                whole.rename(earlier)
            try:
                new.replace(whole)
            except BaseException:
                if earlier.exists():
                    earlier.rename(whole)
                raise
    except OSError as error:
        # Errors of writing, other than those of opening, name no file.
        if error.filename is not None and prefix not in str(error.filename):
            raise
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error


@contextlib.contextmanager
def only_run(argument: str, folder: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes from working in a folder meanwhile.

    Whoever has the lock may take it again. The system drops the lock of a process that ends,
    however it ends. Processes of one job share a folder, each with a lock of its own.

    Raises:
        ValueError: another process has the lock; the message says which, and since when.
        OSError: the lock cannot be written.
    """
    from filelock import FileLock, Timeout

    path = Path(folder) / f".run-{os.environ.get('RANK', '0')}.lock"
    # Read first: filelock before 4 empties the file even where it does not get the lock.
    holder = path.read_text() if path.exists() else ""
    lock = FileLock(path, is_singleton=True)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"{argument} must be a folder that no other run uses, got {os.fspath(folder)!r}, in "
            f"use by {holder or 'another process'}"
        ) from None
    try:
        now = datetime.datetime.now().isoformat(" ", "seconds")
        path.write_text(f"process {os.getpid()} on {platform.node()} since {now}")
        yield
    finally:
        lock.release()
