"""What ranks of a group hear where something is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def heard(refused: Mapping[str, Callable[[Any], Any]], here: Any) -> dict[str, str]:
    """Return what this rank hears, by the beginnings of the sentences."""
    said = {}
    for sentence, call in refused.items():
        try:
            call(here)
            said[sentence] = "nothing was refused"
        except (TypeError, ValueError) as error:
            said[sentence] = str(error)
    return said


def assert_both_hear(sentence: str, heard_by: list[dict[str, str]]) -> None:
    """Assert that both ranks hear the same, and that it begins with a sentence."""
    first, second = (said[sentence] for said in heard_by)
    assert first == second
    assert first.startswith(sentence)
