"""The labels of scalings and biases in titles and legends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ntk_alibi import methods

#: Greatest number of letters of a label.
LONGEST_LABEL = 60


def labelled(things: Any) -> dict[str, Any]:
    """Return one object, several, or a mapping of labels to objects as such a mapping.

    The label of a scaling is the name of its method, such as "ntk:4" or, for None, "original". The
    label of a bias is a short repr with that name for its scaling, or its class if the repr is
    long. Where two objects would have one label, as scalings with different training lengths, the
    label is the short repr, or the class and the position.
    """
    if isinstance(things, Mapping | list | tuple) and not things:
        raise ValueError(f"a picture must show at least one scaling or bias, got {things!r}")
    if isinstance(things, Mapping):
        return dict(things)
    result: dict[str, Any] = {}
    for place, thing in enumerate(things if isinstance(things, list | tuple) else [things], 1):
        label, name = _label(thing), type(thing).__name__
        if label in result and result[label] != thing:
            label = _brief(thing, f"{name} {place}")
        result[label] = thing
    return result


def _label(thing: Any) -> str:
    scaling = getattr(thing, "scaling", None)
    if thing is None or methods.find_kind(thing):
        return methods.method_name(thing)
    if methods.find_kind(scaling):
        before, _, after = repr(thing).partition(repr(scaling))
        return f"{_short(before)}{methods.method_name(scaling)}{_short(after)}"
    return _brief(thing, type(thing).__name__)


def _brief(thing: Any, otherwise: str) -> str:
    """Return the short repr, or `otherwise` if it is too long for a line of a title."""
    text = _short(repr(thing))
    return text if len(text) <= LONGEST_LABEL else otherwise


def _short(text: str) -> str:
    """Return a repr without names of arguments and usual defaults, such as `ALiBi(8)`."""
    bare = re.sub(r"\b\w+=", "", text)
    bare = re.sub(r", (None|'causal')(?=[,)])", "", bare)
    return re.sub(r"\.0(?=[,)])", "", bare)
