"""Where the harness's cache keeps its answers, at a fraction of its own price."""

from __future__ import annotations

import os
import time
from typing import Any

from sqlitedict import SqliteDict

#: Answers that come faster than this are written together.
SECONDS_BETWEEN_WRITES = 0.1


class AnswerFile(SqliteDict):  # type: ignore[misc]
    """The dictionary of the harness's CachingLM, which looks up and writes each answer once.

    The harness hands over every answer twice and waits for the disk each time. An answer once
    kept stays, and what was looked up is remembered, so that neither costs a transaction.

    Args:
        path: of the SQLite file, made if it does not exist.
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
        """Write to the disk what is not there yet."""
        super().commit(blocking)
        self._written = time.monotonic()
