"""The harness's answer cache as a file that survives interruptions, readable by the harness itself.

The harness's own dictionary writes each answer twice and waits for the disk each time. It writes in
a thread, whose end on a full disk or a damaged file it does not notice.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from lm_eval.api.model import CachingLM

from ntk_alibi import _files

#: Answers that arrive within this interval are written in one transaction.
SECONDS_BETWEEN_WRITES = 0.1

#: The table and columns of sqlitedict, which the harness uses.
_TABLE = 'CREATE TABLE IF NOT EXISTS "unnamed" (key TEXT PRIMARY KEY, value BLOB)'


class AnswerFile:
    """A dictionary in an SQLite file that writes each answer once.

    An answer is never overwritten. An interrupted process loses what it has not committed; SQLite
    undoes a transaction that was cut off. All keys are kept in memory, so that a test for a key
    costs no transaction.

    Args:
        path: path of the file, which is created if it does not exist.

    Raises:
        ValueError: the file is damaged.
        OSError: the file cannot be read or written, now or later.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        with self._errors():
            self.connection = sqlite3.connect(self._path)
            self.connection.execute(
                "PRAGMA synchronous=OFF"
            )  # a killed process loses nothing by it
            self.connection.execute(_TABLE)
            (state,) = self.connection.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)
            self._kept = {key for (key,) in self.connection.execute('SELECT key FROM "unnamed"')}
        self._written = time.monotonic()

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __getitem__(self, key: str) -> Any:
        with self._errors():
            statement = 'SELECT value FROM "unnamed" WHERE key = ?'
            (value,) = self.connection.execute(statement, (key,)).fetchone()
            return pickle.loads(value)

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self._kept:
            return
        with self._errors():
            statement = 'INSERT INTO "unnamed" (key, value) VALUES (?, ?)'
            self.connection.execute(statement, (key, pickle.dumps(value)))
        self._kept.add(key)
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self.commit()

    def commit(self) -> None:
        """Write pending answers to the disk."""
        with self._errors():
            self.connection.commit()
        self._written = time.monotonic()

    def close(self) -> None:
        """Write pending answers to the disk and close the file."""
        try:
            self.commit()
        finally:
            self.connection.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of SQLite and pickle into a ValueError or an OSError with the path."""
        expected = "a file of answers; remove it to compute them again"
        try:
            with _files.readable(expected, self._path):
                yield
        except ValueError as error:
            if isinstance(error.__cause__, sqlite3.OperationalError):
                raise OSError(f"{self._path}: {error.__cause__}") from error
            raise


class CachedLM(CachingLM):  # type: ignore[misc]
    """The harness's wrapper of a model that looks up answers, with an `AnswerFile`.

    Args:
        lm: the model.
        answers: the answers.
    """

    def __init__(self, lm: Any, answers: AnswerFile) -> None:
        # The harness's own __init__ would open the file with its dictionary.
        self.lm, self.dbdict, self.cache_db = lm, answers, "answers"
        lm.set_cache_hook(self.get_cache_hook())
