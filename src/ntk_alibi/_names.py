"""Names that are similar to a misspelt one, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
