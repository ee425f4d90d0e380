"""Rules, which give the method for texts of a length, and its name in tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A method whose factor and start may depend on the text's length and the training length.

    Attributes:
        spelling: the name of the method, such as "knee:START:FACTOR". START becomes half of the
            training length, FACTOR the growth times the text's length in training lengths.
        growth: FACTOR for a text of one training length.
    """

    spelling: str
    growth: int = 1

    def method(self, multiple: int, train_length: int) -> str:
        """Return the method that reads texts of so many training lengths."""
        return self._with_factor(multiple).replace("START", str(train_length // 2))

    def shown(self, multiples: Iterable[int], train_lengths: Iterable[int]) -> str:
        """Return the name of the method, or the names for the shortest and the longest texts.

        START stays as it is where models have different training lengths.

        Example:
            >>> Rule("flat:FACTOR", growth=2).shown((1, 2, 4), (2048,))
            'flat:2 … flat:8'
        """
        ends, lengths = sorted(multiples), set(train_lengths)
        names = [self._with_factor(multiple) for multiple in (ends[0], ends[-1])]
        if len(lengths) == 1:
            names = [self.method(multiple, *lengths) for multiple in (ends[0], ends[-1])]
        return " … ".join(dict.fromkeys(names))

    def _with_factor(self, multiple: int) -> str:
        return self.spelling.replace("FACTOR", str(self.growth * multiple))
