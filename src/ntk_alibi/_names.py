"""Advice on wrong names for error messages: similar names, and what replaces former ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Former names of methods and of types in config dicts, with what to use instead.
FORMER = dict.fromkeys(
    ("knee", "dynamic-knee", "dynamic_knee"), "knees are no more; use ntk:FACTOR or flat:FACTOR"
)

#: The least similarity of names that are taken for each other; equal names have 1.
SIMILARITY = 0.75


def find_closest(name: str, names: Iterable[str], *, similarity: float = SIMILARITY) -> str | None:
    """Return the one of names that is most similar to a name, or None if none is similar."""
    in_lower_case = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), in_lower_case, n=1, cutoff=similarity)
    return in_lower_case[near[0]] if near else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message, ": did you mean ...?", or ""."""
    near = find_closest(name, names)
    return "" if near is None else f": did you mean {near}?"


def former(name: object) -> str:
    """Return the end of an error message about a former name, or ""."""
    return f": {FORMER[name]}" if isinstance(name, str) and name in FORMER else ""
