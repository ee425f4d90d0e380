"""The study's records: names with a number each, then some of the names again as questions.

They are the records of evaluation/records/lines.py in their shortest form: a name is one token. A
model that trains for a few minutes should learn to look up the number that followed the same name,
and nothing else. With names of two tokens many models match the second one alone, which gives
seven of eight answers at the training length, and stop there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ntk_alibi.evaluation.records.record import Case, Encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Tokens of a line (name, number, end of line) with the tokenizer of the nano models.
LINE_TOKENS = 3


def one_token_names(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the words of two or more lower-case letters that are one token after a space."""
    texts = {str(tokenizer.decode([token])) for token in range(len(tokenizer))}
    return tuple(sorted(x for x in texts if x[0:1] == " " and len(x) > 2 and _is_word(x[1:])))


def _is_word(text: str) -> bool:
    return text.isascii() and text.isalpha() and text.islower()


@dataclass(frozen=True)
class Pairs:
    """Records of lines with a name and a number each, and questions for some of the numbers.

    The names of the questions are drawn uniformly and without replacement, so that the distances
    spread over the whole record.

    Attributes:
        questions: number of questions in a case; at most half of the lines are questions.
        names: names of the lines, each of one token; a record uses each at most once.
    """

    questions: int
    names: tuple[str, ...] = field(repr=False)
    name: ClassVar[str] = "pairs"

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case; see `RecordKind`."""
        lines = length // LINE_TOKENS
        questions = min(self.questions, lines // 2)
        stated = lines - questions
        if questions < 1 or stated > len(self.names):
            raise ValueError(
                f"length must be from {2 * LINE_TOKENS} tokens to the length of "
                f"{len(self.names)} names, got {length}"
            )
        names = [self.names[i] for i in rng.choice(len(self.names), stated, replace=False)]
        numbers = [f"{number:02d}" for number in rng.integers(100, size=stated)]
        asked_lines = rng.choice(stated, questions, replace=False)
        end = encode(["\n"])[0]
        tokens: list[int] = []
        places: list[int] = []
        for i in [*range(stated), *asked_lines]:
            name, number = encode([names[i], numbers[i]])
            tokens += name
            places.append(len(tokens))
            tokens += [*number, *end]
        answers = places[stated:]
        return Case(
            np.array(tokens, np.int64),
            [(place, place + 1) for place in answers],
            [place - places[i] for place, i in zip(answers, asked_lines, strict=True)],
        )
