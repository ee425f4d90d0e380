"""Summaries of studies that were stored as JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from typing import Any

from ntk_alibi import _checks, _files
from ntk_alibi.evaluation.comparing.summary import Summary

#: Keys of the entries of each list: texts, numbers, and numbers that may be None: those of no
#: cases, and half-widths of a single record or window, which are NaN in a study.
_ACCURACY = ("accuracy", "low", "high")
_ENTRIES: dict[str, tuple[Collection[str], Collection[str], Collection[str]]] = {
    "retrieval": (("task", "method"), ("multiple", "cases"), _ACCURACY),
    "by_distance": (("task", "method"), ("begin", "end", "cases"), _ACCURACY),
    "by_depth": (("task", "method"), ("multiple", "begin", "end", "cases"), _ACCURACY),
    "perplexity": (("method",), ("begin", "end", "nats", "difference"), ("half_width",)),
}

#: Keys that entries may have besides, numbers or None.
_PERHAPS = ("gain", "gain_half_width")


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
    _check_study(value)
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
            _restore_nan(entry)
    return summary


def _check_study(value: Any) -> None:
    """Check that a value has the keys of a study, and not those of another command."""
    if not isinstance(value, Mapping):
        raise ValueError(f"it must be an object, got {str(value)[:40]}")
    for key, command in (("rows", "eval --tasks"), ("trace", "tune")):
        if key in value:
            raise ValueError(
                f"it must be a study's, got the output of `ntk-alibi {command} --json`, which "
                "--from-json does not show"
            )
    required = ("train_length", "methods", "retrieval", "by_distance", "perplexity")
    _required_keys("it", value, required)


def _restore_nan(entry: dict[str, Any]) -> None:
    """Put NaN, which JSON lacks, back in place of the half-width of a single record or window."""
    for width in ("half_width", "gain_half_width"):
        if width in entry and entry[width] is None:
            entry[width] = math.nan


def _required_keys(name: str, value: Any, required: Collection[str]) -> None:
    """Check that a mapping has all required keys; others may be there."""
    if isinstance(value, Mapping):
        value = {key: value[key] for key in required if key in value}
    _checks.keys(name, value, required=required)


def _check_entry(
    name: str,
    entry: Any,
    methods: Mapping[str, Any],
    texts: Collection[str],
    numbers: Collection[str],
    perhaps: Collection[str],
) -> None:
    _required_keys(f"an entry of {name}", entry, [*texts, *numbers, *perhaps])
    values = [entry[key] for key in numbers]
    values += [v for k in (*perhaps, *_PERHAPS) if (v := entry.get(k)) is not None]
    if (
        entry["method"] not in methods
        or not _texts(entry[key] for key in texts)
        or not all(isinstance(number, int | float) for number in values)
    ):
        raise ValueError(f"an entry of {name} must have numbers of a known method, got {entry!r}")
    for key in _ACCURACY:
        if (number := entry.get(key)) is not None and not 0 <= number <= 1:
            raise ValueError(f"{key} of {name} must be between 0 and 1, got {number!r}")


def _texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)
