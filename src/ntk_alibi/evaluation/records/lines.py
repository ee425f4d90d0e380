"""Records of named lines with one number each, as in LongEval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ntk_alibi.evaluation.records.record import Builder, Case, Encode, check_room, filler
from ntk_alibi.evaluation.records.words import LINE_NAMES

SHORTEST_LINE = 8  # in tokens; every tokenizer in use needs at least as many for a line
LINES_HEADER = "Here is a record of lines.\n"
LINE_BEGIN = "line {}: REGISTER_CONTENT is <"
LINE_END = ">\n"
LINE_QUESTION = "What is the REGISTER_CONTENT of line {}? <"


#: Tokens of a block of prose between lines, where fewer names are known than lines would fit.
PROSE_BLOCK = 64


@dataclass(frozen=True)
class Lines:
    """Records of named lines with a number each, and questions for the numbers of some lines.

    The lines of the questions are drawn uniformly, so their distances spread over the whole record.
    In a record that has room for more lines than there are names, blocks of prose spread evenly
    between the lines take the rest of the room.

    Attributes:
        questions: number of questions in a case, about different lines if there are enough lines.
        names: names of the lines, of which a record uses each at most once.
        prose: sentences of the blocks; without them such a long record is an error.
    """

    questions: int = 32
    names: tuple[str, ...] = field(default=LINE_NAMES, repr=False)
    prose: tuple[str, ...] = field(default=(), repr=False)
    name: ClassVar[str] = "lines"

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case; see `RecordKind`."""
        builder = Builder(encode)
        builder.add(encode([LINES_HEADER])[0])
        most = min(len(self.names), max(1, length // SHORTEST_LINE))
        names = [self.names[i] for i in rng.choice(len(self.names), most, replace=False)]
        numbers = [str(number) for number in rng.integers(1000, 10000, most)]
        count = self._lines_that_fit(encode, names, numbers, length - len(builder))
        check_room(count, self.name, length)
        asked_lines = rng.choice(count, self.questions, replace=count < self.questions)
        lines = [(LINE_BEGIN.format(names[i]), numbers[i], LINE_END) for i in range(count)]
        asked = [(LINE_QUESTION.format(names[i]), numbers[i], LINE_END) for i in asked_lines]
        blocks = 0
        if count == len(self.names):
            texts = [text for parts in (*lines, *asked) for text in parts]
            room = length - len(builder) - sum(map(len, encode(texts)))
            blocks = room // PROSE_BLOCK
        if blocks and not self.prose:
            raise ValueError(
                f"length must not exceed {count} lines, as many as names, got {length}"
            )
        sources, written = [], 0
        for i, line in enumerate(lines):
            begin, number, end = encode(list(line))
            builder.add(begin)
            sources.append(builder.add(number))
            builder.add(end)
            while written < blocks * (i + 1) // count:
                builder.add(filler(encode, self.prose, PROSE_BLOCK - 1, rng))
                builder.add(encode(["\n"])[0])
                written += 1
        for i, question in zip(asked_lines, asked, strict=True):
            builder.ask(*question, sources[i])
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
