"""Records of numbered conversation topics, as in LongEval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ntk_alibi.evaluation.records.record import Builder, Case, Encode, check_room, filler
from ntk_alibi.evaluation.records.words import ORDINALS, TOPIC_WORDS

TOPICS_HEADER = "Here is a record of our conversation.\n"
TOPIC_BEGIN = "\nUSER: Let us discuss our {} topic,"
TOPIC_END = ".\nASSISTANT:"
TOPIC_QUESTION = "\nUSER: What was our {} topic?\nASSISTANT:"
TOPIC_ANSWER_END = "."


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
