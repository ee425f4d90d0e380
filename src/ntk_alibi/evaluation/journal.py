"""Results written as they come, so that interrupted work resumes and nothing is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class Journal:
    """A file of JSON lines: first what is being done, then one line for each finished piece of it.

    A line that an interrupt cut short at the end of the file is dropped.

    Args:
        path: the file; created, or continued if it was begun by the same work.
        work: what is being done, JSON values only.

    Raises:
        ValueError: the file was begun by other work, or is not a journal.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "results.jsonl"
        >>> with Journal(path, {"model": "nano"}) as journal:
        ...     journal.write("case 1", {"correct": True})
        >>> with Journal(path, {"model": "nano"}) as journal:
        ...     "case 1" in journal, journal["case 1"]
        (True, {'correct': True})
    """

    def __init__(self, path: str | os.PathLike[str], work: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._results: dict[str, Any] = {}
        header = json.dumps({"work": dict(work)}, sort_keys=True)
        keep = self._read(header) if self.path.exists() else 0
        self._file = self.path.open("r+b" if keep else "wb")
        self._file.truncate(keep)
        self._file.seek(keep)
        if not keep:
            self._append(header)

    def _read(self, header: str) -> int:
        """Load the finished lines; the number of bytes they take."""
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if number > 1:
                    self._results[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"{self.path}, line {number}: not a line of a results file: {line[:80]!r}"
                ) from None
        if lines and lines[0].decode() != header:
            raise ValueError(
                f"{self.path} holds results of other work, {lines[0].decode()}, than {header}; "
                "choose another file or remove it"
            )
        return len(whole) + 1 if lines else 0

    def _append(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> Any:
        return self._results[key]

    def __len__(self) -> int:
        return len(self._results)

    def write(self, key: str, result: Any) -> None:
        """Add a finished piece; it is on its way to the disk when this returns."""
        self._append(json.dumps({"key": key, "result": result}))
        self._results[key] = result

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
