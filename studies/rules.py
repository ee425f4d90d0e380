"""Rules, which give the method for texts of a length, and its name in tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A method whose factor may depend on the text's length.

    Attributes:
        spelling: the name of the method, such as "flat:FACTOR". FACTOR becomes the growth times the
            text's length in training lengths.
        growth: FACTOR for a text of one training length.
    """

    spelling: str
    growth: int = 1

    def method(self, multiple: int) -> str:
        """Return the method that reads texts of so many training lengths."""
        return self.spelling.replace("FACTOR", str(self.growth * multiple))

    def shown(self, multiples: Iterable[int]) -> str:
        """Return the name of the method, or the names for the shortest and the longest texts.

        Example:
            >>> Rule("flat:FACTOR", growth=2).shown((1, 2, 4))
            'flat:2 … flat:8'
        """
        ends = sorted(multiples)
        return " … ".join(dict.fromkeys(self.method(multiple) for multiple in (ends[0], ends[-1])))
