"""Texts of the study: lines of a name and its number, with masked tokens.

A line is a name, a number, the name again and the end of the line, one token each, as in the tags
`<name> number </name>`. Two kinds of tokens are masked:

- numbers: each name is in two lines with the same number, one of which is masked. The other line,
  before it or behind it, has the answer.
- names: in one of four lines, one of the two names is masked. The other, two tokens away, is the
  answer. Without names, trial trainings did not learn to find numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: How many tokens are numbers, and how many are names. A text uses a name for one number only.
NUMBERS, NAMES = 100, 512

#: Tokens: numbers come first, then names, then these.
MASK, END = NUMBERS + NAMES, NUMBERS + NAMES + 1
VOCABULARY = NUMBERS + NAMES + 2

#: Tokens of a line; one of this many lines has a masked name; its twin is NEAR tokens away.
LINE_TOKENS, NAMED_LINES, NEAR = 4, 4, 2

#: The shortest text in tokens, and the longest, for which the names suffice.
SHORTEST, LONGEST = 2 * LINE_TOKENS, 2 * LINE_TOKENS * NAMES


@dataclass(frozen=True)
class MaskedText:
    """A text with masked tokens.

    Attributes:
        tokens: the text, (length,) int64.
        places: the columns of the masked tokens, (masked,) int64.
        answers: the tokens that are masked, (masked,) int64.
        distances: how many tokens away the text has each answer, (masked,) int64: NEAR for names,
            at least `LINE_TOKENS` for numbers.
    """

    tokens: NDArray[np.int64]
    places: NDArray[np.int64]
    answers: NDArray[np.int64]
    distances: NDArray[np.int64]


def draw(length: int, rng: np.random.Generator) -> MaskedText:
    """Draw a text of a length in tokens.

    Lines with a number and lines that mask it are spread over the text at random.

    Raises:
        ValueError: length is below `SHORTEST` or above `LONGEST`.
    """
    if not SHORTEST <= length <= LONGEST:
        raise ValueError(f"length must be from {SHORTEST} to {LONGEST} tokens, got {length}")
    asked = length // LINE_TOKENS // 2
    names = NUMBERS + rng.choice(NAMES, asked, replace=False)
    numbers = rng.integers(NUMBERS, size=asked)
    lines = LINE_TOKENS * rng.permutation(2 * asked)
    tell, ask = lines[:asked], lines[asked:]
    tokens = np.full(length, END, np.int64)
    for begins in (tell, ask):
        tokens[begins] = tokens[begins + NEAR] = names
        tokens[begins + 1] = numbers
    named = rng.choice(lines, len(lines) // NAMED_LINES, replace=False)
    named += NEAR * rng.integers(2, size=len(named))
    places = np.concatenate([ask + 1, named])
    answers = tokens[places]
    tokens[places] = MASK
    distances = np.concatenate([np.abs(ask - tell), np.full(len(named), NEAR)])
    return MaskedText(tokens, places, answers, distances)
