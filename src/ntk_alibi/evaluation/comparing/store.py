"""The answers of a study in a file of JSON lines, which a run that was stopped continues from.

The first line is the key of the study: all that its answers depend on. Each further line is what a
method answers in one text, written as soon as it is known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ntk_alibi import _files

#: The file in the folder of a study.
FILE = "answers.jsonl"


class AnswerStore:
    """Stored answers by method and text.

    Args:
        folder: the folder of the file; None keeps answers in memory.
        key: all that the answers depend on, in JSON.

    Raises:
        ValueError: the file is damaged, or belongs to a study with another key.
        OSError: the file cannot be read or written.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, key: Mapping[str, Any]) -> None:
        self._answers: dict[tuple[str, str], list[Any]] = {}
        self._path = None if folder is None else Path(folder, FILE)
        if folder is None or self._path is None:
            return
        stored = _whole_lines(self._path)
        if not stored:
            self._append(json.loads(_files.json_text(key)))
            return
        with _files.readable("a file of answers; remove it to compute them again", self._path):
            theirs, *answers = map(json.loads, stored)
            self._answers = {(each["method"], each["text"]): each["answer"] for each in answers}
            differing = _differences(theirs, json.loads(_files.json_text(key)))
        if differing:
            raise ValueError(
                f"path must be a folder of answers of this study, got {os.fspath(folder)!r} with "
                f"{differing}: choose another folder or remove it"
            )

    def __len__(self) -> int:
        return len(self._answers)

    def has(self, methods: Iterable[str], text: str) -> bool:
        """Return whether all these methods have read a text."""
        return all((method, text) in self._answers for method in methods)

    def get(self, method: str, text: str) -> list[Any]:
        """Return what a method has answered in a text that it has read."""
        return self._answers[method, text]

    def add(self, method: str, text: str, answer: list[Any]) -> None:
        """Store what a method answers in a text."""
        self._append({"method": method, "text": text, "answer": answer})
        self._answers[method, text] = answer

    def _append(self, entry: Any) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:  # of a write names no file
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error


def _whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file; one that was cut off while it was written goes."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return whole.splitlines()


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return what two keys differ in, in words; "" if nothing."""
    found = []
    for name in dict.fromkeys([*ours, *theirs]):
        before, now = theirs.get(name), ours.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += [part for part in [_differences(before, now)] if part]
        elif before != now:
            found.append(f"{name} {_shown(before)} in place of {_shown(now)}")
    return ", ".join(found)


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value)
