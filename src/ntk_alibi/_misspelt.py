"""Names that are not known, and the known ones that may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from importlib.util import find_spec
from typing import Any

#: How alike a name and a known one must be; 1 for equal names.
ALIKE = 0.75


def meant(name: str, names: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """Return the known name that is most like a name, or None if none is like it."""
    in_lower_case = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), in_lower_case, n=1, cutoff=alike)
    return in_lower_case[near[0]] if near else None


def question(name: str, names: Iterable[str]) -> str:
    """Return the end of a message, ": did you mean ...?", or nothing."""
    near = meant(name, names)
    return "" if near is None else f": did you mean {near}?"


def message(package: str, name: str, names: Iterable[str]) -> str:
    """Return the message of an AttributeError, with the name that may have been meant."""
    absent = f"module {package!r} has no attribute {name!r}"
    if name.startswith("_"):
        return absent
    if find_spec(f"{package}.{name}") is not None:
        return f"{absent}: import {package}.{name}"
    return f"{absent}{question(name, names)}"


def settings(config: Any, names: Collection[str], known: Collection[str]) -> list[str]:
    """Return the attributes of a model's configuration that are almost settings of this package.

    Args:
        config: the configuration; attributes that are None do not count.
        names: the names of settings.
        known: names that are right, whether their values are read or not.
    """
    given = [name for name, value in vars(config).items() if value is not None]
    return [
        name
        for name in given
        if name not in known and (name.startswith("alibi_") or meant(name, names, alike=0.8))
    ]
