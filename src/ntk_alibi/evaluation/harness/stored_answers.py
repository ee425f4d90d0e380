"""The harness's cache of answers: files that survive interruptions, each of one model and method.

The harness finds a stored answer by its request alone, so each file has a digest of its model.
"""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ntk_alibi import _files

#: The key in a file at which the digest of its model is; all others are hashes of requests.
OWNER = "ntk_alibi model"


def claim(stored: Any, digest: str, method: str) -> None:
    """Write the digest of a model into an empty store of the harness.

    Raises:
        ValueError: the store has answers of another model, method or setting.
    """
    if stored.get(OWNER, None if len(stored) else digest) != digest:
        raise ValueError(
            f"use_cache must be a file of answers of this model with {method} and these settings, "
            f"got {stored.filename!r}, which has answers of another: take one file for each"
        )
    stored[OWNER] = digest


@contextlib.contextmanager
def kept(lm: Any, cache: Path | None) -> Iterator[Any]:
    """Yield a model behind the harness's cache, which stores each answer immediately.

    An error of a full disk or a damaged file names the file.
    """
    from lm_eval.api.model import CacheHook, CachingLM

    if cache is None:
        yield lm
        return
    _files.writable_folder(cache.parent)
    path = Path(f"{cache}_rank{lm.rank}.db")
    count_answers(path)
    try:
        cached = CachingLM(lm, str(path))
        with contextlib.closing(cached.dbdict):
            yield cached
    except (sqlite3.Error, pickle.UnpicklingError) as error:
        raise OSError(f"{path}: {error}") from error
    finally:
        lm.set_cache_hook(CacheHook(None))


def count_answers(path: Path) -> int:
    """Return the number of answers in a file; 0 if there is no file.

    Raises:
        ValueError: the file is damaged.
    """
    if not path.exists():
        return 0
    with (
        _files.readable("a file of answers; remove it to compute them again", path),
        contextlib.closing(sqlite3.connect(path)) as connection,
    ):
        (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise ValueError(state)
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        select = 'SELECT count(*) FROM "{}" WHERE key != ?'
        counts = [connection.execute(select.format(name), (OWNER,)) for (name,) in tables]
        return sum(number for found in counts for (number,) in found)
