"""Records as in LongEval: named lines with a number each, and conversations about topics."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ntk_alibi.evaluation.records.record import Builder, Case, Encode, check_room
from ntk_alibi.evaluation.records.words import LINE_NAMES, ORDINALS, TOPIC_WORDS

SHORTEST_LINE = 8  # tokens; no tokenizer in use needs fewer for a line
LINES_HEADER = "Here is a record of lines.\n"
LINE_BEGIN = "line {}: REGISTER_CONTENT is <"
LINE_END = ">\n"
LINE_QUESTION = "What is the REGISTER_CONTENT of line {}? <"

#: Tokens of a block of prose between lines, where more lines would fit than there are names.
PROSE_BLOCK = 64

TOPICS_HEADER = "Here is a record of our conversation.\n"
TOPIC_BEGIN = "\nUSER: Let us discuss our {} topic,"
TOPIC_END = ".\nASSISTANT:"
TOPIC_QUESTION = "\nUSER: What was our {} topic?\nASSISTANT:"
TOPIC_ANSWER_END = "."


@dataclass(frozen=True)
class Lines:
    """Records of named lines with a number each, and questions about some lines.

    The questions are about random lines, so their distances spread over the record. A record with
    room for more lines than there are names is filled by blocks of prose, spread evenly between the
    lines.

    Attributes:
        questions: number of questions in a case, about different lines if there are enough.
        names: names of the lines; a record uses each at most once.
        prose: sentences of the blocks; without any, such a long record is an error.
    """

    questions: int = 32
    names: tuple[str, ...] = field(default=LINE_NAMES, repr=False)
    prose: tuple[str, ...] = field(default=(), repr=False)

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case; see `RecordKind`."""
        builder = Builder(encode)
        builder.add(LINES_HEADER)
        most = min(len(self.names), max(1, length // SHORTEST_LINE))
        names = [self.names[i] for i in rng.choice(len(self.names), most, replace=False)]
        answers = [str(answer) for answer in rng.integers(1000, 10000, most)]
        count = self._count_fitting_lines(encode, names, answers, length - len(builder))
        check_room(count, "lines", length)
        asked_lines = rng.choice(count, self.questions, replace=count < self.questions)
        lines = [(LINE_BEGIN.format(names[i]), answers[i], LINE_END) for i in range(count)]
        asked = [(LINE_QUESTION.format(names[i]), answers[i], LINE_END) for i in asked_lines]
        blocks = 0
        if count == len(self.names):
            blocks = builder.room(length, [*lines, *asked]) // PROSE_BLOCK
        if blocks and not self.prose:
            raise ValueError(
                f"length must not exceed {count} lines, as many as names, got {length}"
            )
        sources, written = [], 0
        for i, line in enumerate(lines):
            sources.append(builder.state(*line))
            while written < blocks * (i + 1) // count:
                builder.fill(self.prose, PROSE_BLOCK - 1, rng)
                builder.add("\n")
                written += 1
        for i, question in zip(asked_lines, asked, strict=True):
            builder.ask(*question, sources[i])
        return builder.case()

    def _count_fitting_lines(
        self, encode: Encode, names: list[str], answers: list[str], room: int
    ) -> int:
        """Count the lines that fit into room together with questions about the longest of them."""
        end = len(encode([LINE_END])[0])
        fitting, used, questions = 0, 0, [0] * self.questions
        for name, answer in zip(names, answers, strict=True):
            before, question, said = encode(
                [LINE_BEGIN.format(name), LINE_QUESTION.format(name), answer]
            )
            used += len(before) + len(said) + end
            questions = sorted([*questions, len(question) + len(said) + end])[1:]
            longest = questions[-1] * self.questions if fitting < self.questions else sum(questions)
            if used + longest > room:
                break
            fitting += 1
        return fitting


@dataclass(frozen=True)
class Topics:
    """Conversations about numbered topics, and questions about the first topics.

    The first topics have the greatest distances, and LongEval asks about them. They are numbered in
    the record, so that a small model can tell which one was first. The names of topics share some
    of their tokens.

    Attributes:
        prose: sentences that fill the conversation.
        questions: number of questions in a case: about the first topic, the second, and so on.
        topics: number of topics in the record; fewer if it has less than 40 tokens for each.
    """

    prose: tuple[str, ...] = field(repr=False)
    questions: int = 5
    topics: int = 12

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case; see `RecordKind`."""
        count = min(self.topics, len(ORDINALS), max(1, length // 40))
        topics = [" the {} of {} {}".format(*map(rng.choice, TOPIC_WORDS)) for _ in range(count)]
        asked_topics = list(range(min(self.questions, count)))
        builder = Builder(encode)
        builder.add(TOPICS_HEADER)
        lines = [
            (TOPIC_BEGIN.format(ordinal), topic, TOPIC_END)
            for ordinal, topic in zip(ORDINALS, topics, strict=False)
        ]
        asked = [
            (TOPIC_QUESTION.format(ORDINALS[i]), topics[i], TOPIC_ANSWER_END) for i in asked_topics
        ]
        room = builder.room(length, [*lines, *asked])
        check_room(room, "topics", length)
        shares = rng.random(count) + 0.5
        fillers = np.floor(room * shares / shares.sum()).astype(int)
        sources = []
        for line, share in zip(lines, fillers, strict=True):
            sources.append(builder.state(*line))
            builder.fill(self.prose, int(share), rng)
        for i, question in zip(asked_topics, asked, strict=True):
            builder.ask(*question, sources[i])
        return builder.case()
