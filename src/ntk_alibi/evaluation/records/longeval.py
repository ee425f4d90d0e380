"""Records as in LongEval: named lines with one number each, and numbered conversation topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ntk_alibi.evaluation.records.record import Builder, Case, Encode, check_room, filler
from ntk_alibi.evaluation.records.words import LINE_NAMES, ORDINALS, TOPIC_WORDS

SHORTEST_LINE = 8  # in tokens; every tokenizer in use needs at least as many for a line
LINES_HEADER = "Here is a record of lines.\n"
LINE_BEGIN = "line {}: REGISTER_CONTENT is <"
LINE_END = ">\n"
LINE_QUESTION = "What is the REGISTER_CONTENT of line {}? <"

#: Tokens of a block of prose between lines, where fewer names are known than lines would fit.
PROSE_BLOCK = 64

TOPICS_HEADER = "Here is a record of our conversation.\n"
TOPIC_BEGIN = "\nUSER: Let us discuss our {} topic,"
TOPIC_END = ".\nASSISTANT:"
TOPIC_QUESTION = "\nUSER: What was our {} topic?\nASSISTANT:"
TOPIC_ANSWER_END = "."


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


@dataclass(frozen=True)
class Topics:
    """Conversations about numbered topics, and questions for the first (second, ...) topic.

    As in LongEval, the questions are about the first topics, which have the greatest distances. The
    topics are numbered in the record, so that a small model can tell which one was first. A topic's
    name has several tokens, some of which other names contain too.

    Attributes:
        prose: sentences that fill the conversation.
        questions: number of questions in a case, each about one of the first topics in order.
        topics: number of topics in the record; smaller if the record is shorter than 40 tokens for
            each.
        ask_any: whether the questions are about random topics, for training, instead of the first.
    """

    prose: tuple[str, ...] = field(repr=False)
    questions: int = 5
    topics: int = 12
    ask_any: bool = False
    name: ClassVar[str] = "topics"

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case; see `RecordKind`."""
        count = min(self.topics, len(ORDINALS), max(1, length // 40))
        topics = [" the {} of {} {}".format(*map(rng.choice, TOPIC_WORDS)) for _ in range(count)]
        asked_topics = list(range(min(self.questions, count)))
        if self.ask_any:
            asked_topics = list(rng.permutation(count)[: len(asked_topics)])
        builder = Builder(encode)
        builder.add(encode([TOPICS_HEADER])[0])
        room = length - len(builder) - self._fixed_length(encode, topics, asked_topics)
        check_room(room, self.name, length)
        shares = rng.random(count) + 0.5
        fillers = np.floor(room * shares / shares.sum()).astype(int)
        sources = []
        for ordinal, topic, share in zip(ORDINALS, topics, fillers, strict=False):
            begin, middle, end = encode([TOPIC_BEGIN.format(ordinal), topic, TOPIC_END])
            builder.add(begin)
            sources.append(builder.add(middle))
            builder.add(end)
            builder.add(filler(encode, self.prose, int(share), rng))
        for i in asked_topics:
            builder.ask(TOPIC_QUESTION.format(ORDINALS[i]), topics[i], TOPIC_ANSWER_END, sources[i])
        return builder.case()

    def _fixed_length(self, encode: Encode, topics: list[str], asked_topics: list[int]) -> int:
        """Count the tokens of the topics and questions, without header and filler."""
        pieces = [
            text
            for ordinal, topic in zip(ORDINALS, topics, strict=False)
            for text in (TOPIC_BEGIN.format(ordinal), topic, TOPIC_END)
        ]
        for i in asked_topics:
            pieces += [TOPIC_QUESTION.format(ORDINALS[i]), topics[i], TOPIC_ANSWER_END]
        return sum(map(len, encode(pieces)))
