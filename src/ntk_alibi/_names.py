"""Names that left or are similar to a misspelt one, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

#: Names that left, with what people use instead.
FORMER = {
    "per": "one factor for each text",
    "query": "one factor for each text",
    "sequence": "one factor for each text is what dynamic methods have",
    "share": "a quarter of the heads is stretched",
    "layers": "a scaling is for all layers; patch takes a dict of layer to bias",
    "biased": "log_n multiplies scores without their bias",
    "ssmax": "use logn=, which multiplies scores without their bias",
    "knee": "use ntk:FACTOR or flat:FACTOR",
    "dynamic-knee": "use dynamic-ntk or dynamic-flat",
    "dynamic_knee": "use dynamic or dynamic_flat_heads",
    "Knee": "use NTK or FlatHeads",
    "DynamicKnee": "use DynamicNTK or DynamicFlatHeads",
}

#: The least similarity of names that are taken for each other; equal names have 1.
SIMILARITY = 0.75


class FormerArguments:
    """The base class of value objects that had other arguments: it refuses those by name."""

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        for name in arguments.keys() & FORMER.keys():
            raise TypeError(f"{name} is no argument of {cls.__name__}: {FORMER[name]}")
        return super().__new__(cls)


def find_closest(name: str, names: Iterable[str], *, similarity: float = SIMILARITY) -> str | None:
    """Return the one of names that is most similar to a name, or None if none is similar."""
    in_lower_case = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), in_lower_case, n=1, cutoff=similarity)
    return in_lower_case[near[0]] if near else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message, ": did you mean ...?", or ""; of a former name advice."""
    if name in FORMER:
        return f": {FORMER[name]}"
    near = find_closest(name, names)
    return "" if near is None else f": did you mean {near}?"
