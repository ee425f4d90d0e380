"""The message about a name that a package does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.util import find_spec


def message(package: str, name: str, names: Iterable[str]) -> str:
    """Return the message of an AttributeError, with the name that may have been meant."""
    absent = f"module {package!r} has no attribute {name!r}"
    if name.startswith("_"):
        return absent
    if find_spec(f"{package}.{name}") is not None:
        return f"{absent}: import {package}.{name}"
    in_lower_case = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), in_lower_case, n=1, cutoff=0.75)
    return f"{absent}: did you mean {in_lower_case[near[0]]}?" if near else absent
