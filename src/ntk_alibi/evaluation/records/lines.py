"""Records of named lines with one number each, as in LongEval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ntk_alibi.evaluation.records.record import Builder, Case, Encode, check_room
from ntk_alibi.evaluation.records.words import LINE_NAMES

SHORTEST_LINE = 8  # in tokens; every tokenizer in use needs at least as many for a line
LINES_HEADER = "Here is a record of lines.\n"
LINE_BEGIN = "line {}: REGISTER_CONTENT is <"
LINE_END = ">\n"
LINE_QUESTION = "What is the REGISTER_CONTENT of line {}? <"


@dataclass(frozen=True)
class Lines:
    """Records of named lines with a number each, and questions for the numbers of some lines.

    The lines of the questions are drawn uniformly, so their distances spread over the whole record.

    Attributes:
        questions: number of questions in a case, about different lines if there are enough lines.
    """

    questions: int = 32
    name: ClassVar[str] = "lines"

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case; see `RecordKind`."""
        builder = Builder(encode)
        builder.add(encode([LINES_HEADER])[0])
        most = min(len(LINE_NAMES), max(1, length // SHORTEST_LINE))
        names = [LINE_NAMES[i] for i in rng.choice(len(LINE_NAMES), most, replace=False)]
        numbers = [str(number) for number in rng.integers(1000, 10000, most)]
        count = self._lines_that_fit(encode, names, numbers, length - len(builder))
        check_room(count, self.name, length)
        sources = []
        for name, number in zip(names[:count], numbers[:count], strict=True):
            begin, middle, end = encode([LINE_BEGIN.format(name), number, LINE_END])
            builder.add(begin)
            sources.append(builder.add(middle))
            builder.add(end)
        for i in rng.choice(count, self.questions, replace=count < self.questions):
            builder.ask(LINE_QUESTION.format(names[i]), numbers[i], LINE_END, sources[i])
        return builder.case()

    def _lines_that_fit(
        self, encode: Encode, names: list[str], numbers: list[str], room: int
    ) -> int:
        """Return how many lines fit into room together with questions about the longest of them."""
        end = len(encode([LINE_END])[0])
        fitting, used, questions = 0, 0, [0] * self.questions
        for name, number in zip(names, numbers, strict=True):
            begin, question, answer = encode(
                [LINE_BEGIN.format(name), LINE_QUESTION.format(name), number]
            )
            used += len(begin) + len(answer) + end
            questions = sorted([*questions, len(question) + len(answer) + end])[1:]
            longest = questions[-1] * self.questions if fitting < self.questions else sum(questions)
            if used + longest > room:
                break
            fitting += 1
        return fitting
