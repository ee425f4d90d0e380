"""The study's records: names with a number each, then some of the names again.

The records of evaluation/tasks.py in their shortest form: a model that has only minutes to learn
should learn to look up what stood behind the same name, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ntk_alibi.evaluation.records.record import Case, Encode
from ntk_alibi.evaluation.records.words import ADJECTIVES, NOUNS

#: Of a name, its number and the end of the line, with the tokenizer of the nano models.
LINE_TOKENS = 4

NAMES = [f" {adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS]


@dataclass(frozen=True)
class Pairs:
    """Lines of a name and a number; what was the number of these names?

    The names asked for are drawn uniformly and asked for once each, so that distances spread over
    the whole record.

    Attributes:
        questions: a case; half of the lines at most.
    """

    questions: int
    name: ClassVar[str] = "pairs"

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """See `Task`."""
        lines = length // LINE_TOKENS
        questions = min(self.questions, lines // 2)
        stated = lines - questions
        if questions < 1 or stated > len(NAMES):
            raise ValueError(
                f"length must be from {2 * LINE_TOKENS} tokens to those of {len(NAMES)} names, "
                f"got {length}"
            )
        names = [NAMES[i] for i in rng.choice(len(NAMES), stated, replace=False)]
        numbers = [f"{number:02d}" for number in rng.integers(100, size=stated)]
        asked = rng.choice(stated, questions, replace=False)
        end = encode(["\n"])[0]
        tokens: list[int] = []
        places: list[int] = []
        for i in [*range(stated), *asked]:
            name, number = encode([names[i], numbers[i]])
            tokens += name
            places.append(len(tokens))
            tokens += [*number, *end]
        answers = places[stated:]
        return Case(
            np.array(tokens, np.int64),
            [(place, place + 1) for place in answers],
            [place - places[i] for place, i in zip(answers, asked, strict=True)],
        )
