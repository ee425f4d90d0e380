"""Summaries of studies that were stored as JSON."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from ntk_alibi import _checks, _files
from ntk_alibi.evaluation.comparing.summary import Summary

#: Keys of the entries of each list: texts, numbers, and numbers that are None without cases.
_ACCURACY = ("accuracy", "low", "high")
_ENTRIES: dict[str, tuple[Collection[str], Collection[str], Collection[str]]] = {
    "retrieval": (("task", "method"), ("multiple", "cases"), _ACCURACY),
    "by_distance": (("task", "method"), ("begin", "end", "cases"), _ACCURACY),
    "by_depth": (("task", "method"), ("multiple", "begin", "end", "cases"), _ACCURACY),
    "perplexity": (("method",), ("begin", "end", "nats", "difference", "half_width"), ()),
}


def read_summary(path: str | os.PathLike[str]) -> Summary:
    """Read a summary that `ntk-alibi eval --json` printed.

    Summaries of earlier versions lack by_depth and commands.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no summary.
    """
    value = _files.read_json(path)
    with _files.readable("a summary that `ntk-alibi eval --json` printed", path):
        return _checked(value)


def _checked(value: Any) -> Summary:
    if not isinstance(value, Mapping):
        raise ValueError(f"it must be an object, got {str(value)[:40]}")
    required = ("train_length", "methods", "retrieval", "by_distance", "perplexity")
    _checks.keys("it", value, required=required, optional=value)
    _checks.integer("train_length", value["train_length"], minimum=1)
    methods = value["methods"]
    if not isinstance(methods, Mapping) or not methods or not _texts(methods.values()):
        raise ValueError(f"methods must be an object of names and labels, got {methods!r}")
    if not value["retrieval"] and not value["perplexity"]:
        raise ValueError("retrieval or perplexity must hold results, got none")
    summary = Summary({"by_depth": [], "commands": {}, **value})
    cells = summary["commands"]
    if not isinstance(cells, Mapping) or not all(isinstance(c, Mapping) for c in cells.values()):
        raise ValueError(f"commands must be an object of objects, got {str(cells)[:40]}")
    for key, names in _ENTRIES.items():
        if not isinstance(summary[key], list):
            raise ValueError(f"{key} must be a list, got {str(summary[key])[:40]}")
        for entry in summary[key]:
            _check_entry(key, entry, methods, *names)
    return summary


def _check_entry(
    name: str,
    entry: Any,
    methods: Mapping[str, Any],
    texts: Collection[str],
    numbers: Collection[str],
    perhaps: Collection[str],
) -> None:
    _checks.keys(
        f"an entry of {name}", entry, required=[*texts, *numbers, *perhaps], optional=entry
    )
    values = [entry[key] for key in numbers]
    values += [entry[key] for key in perhaps if entry[key] is not None]
    if (
        entry["method"] not in methods
        or not _texts(entry[key] for key in texts)
        or not all(isinstance(number, int | float) for number in values)
    ):
        raise ValueError(f"an entry of {name} must have numbers of a known method, got {entry!r}")


def _texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)
