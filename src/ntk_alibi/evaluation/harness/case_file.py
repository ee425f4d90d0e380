"""Files of cases with a JSON object in each line, and errors that name the file and the line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ntk_alibi import _files
from ntk_alibi.evaluation import checks

Case = dict[str, Any]


def read_lines(
    path: str | os.PathLike[str], kind: str, parse: Callable[[Case], Case], *, blanks: bool = False
) -> list[tuple[int, Case]]:
    """Read the cases of a file with their line numbers, from 1.

    Args:
        path: path of a .jsonl file.
        kind: name of the kind of cases, for errors.
        parse: function that checks and converts the object of a line.
        blanks: whether blank lines are skipped; otherwise they are errors.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is malformed, or there is none.
    """
    read = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if blanks and not line.strip():
                continue
            try:
                read.append((number, parse(_entry(line))))
            except (ValueError, KeyError, TypeError) as error:
                reason = f"key {error} is missing" if isinstance(error, KeyError) else error
                raise ValueError(f"{path}, line {number}: no case of {kind}: {reason}") from None
    checks.some_cases(path, read)
    return read


def _entry(line: bytes) -> Case:
    entry = _files.parse_json(line.decode("utf-8"))
    if not isinstance(entry, dict):
        raise TypeError(f"expected an object, got {line[:40]!r}")
    return entry


def text(entry: Case, key: str) -> str:
    """Return the text of a key, which must be Unicode and not empty."""
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key} must be a string that is not empty, got {value!r}")
    value.encode("utf-8")  # a surrogate alone is no text
    return value


def texts(entry: Case, key: str) -> list[str]:
    """Return the texts of a key, of which there must be at least one."""
    values = entry[key]
    if not isinstance(values, list) or not values:
        raise TypeError(f"{key} must be a list of strings, got {values!r}")
    return [text({key: value}, key) for value in values]
