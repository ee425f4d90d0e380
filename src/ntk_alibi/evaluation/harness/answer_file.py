"""A faster file format for the harness's answer cache, readable by the harness itself."""

from __future__ import annotations

import os
import time
from typing import Any

from sqlitedict import SqliteDict

#: Answers that arrive within this interval are written in one transaction.
SECONDS_BETWEEN_WRITES = 0.1


class AnswerFile(SqliteDict):  # type: ignore[misc]
    """A dictionary for the harness's CachingLM that writes each answer once.

    The harness stores every answer twice and waits for the disk each time. This class never
    overwrites an answer and keeps all keys in memory, so that neither the second write nor a test
    for a key costs a transaction.

    Args:
        path: path of the SQLite file, which is created if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(os.fspath(path), outer_stack=False)
        self._kept = set(self.keys())
        self._written = time.monotonic()

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self._kept:
            return
        super().__setitem__(key, value)
        self._kept.add(key)
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self.commit()

    def commit(self, blocking: bool = True) -> None:
        """Write pending answers to the disk."""
        super().commit(blocking)
        self._written = time.monotonic()
