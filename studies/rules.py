"""Rules: the method by which texts of a length are read, and how tables name it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A method whose numbers may depend on the length of the text and on the training length.

    Attributes:
        spelling: the name of the method, such as "knee:START:FACTOR". START is half of the training
            length.
        growth: FACTOR of a text of one training length, in proportion to which it grows.
    """

    spelling: str
    growth: int = 1

    def method(self, multiple: int, train_length: int) -> str:
        """Return the method that reads texts of so many training lengths."""
        return self._with_factor(multiple).replace("START", str(train_length // 2))

    def shown(self, multiples: Iterable[int], train_lengths: Iterable[int]) -> str:
        """Return the method of all texts, or those of the shortest and of the longest ones.

        The start of a knee is START where it differs between models.

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
