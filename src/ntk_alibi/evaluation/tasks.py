"""Retrieval tasks in the manner of LongEval, made for any tokenizer and any length.

A case is one record followed by several questions about it, each with its answer. The model reads
all of it at once; it has answered a question if its most likely token is right at every token of
the answer. That is what greedy decoding of this question would give, since a wrong token before
would have ended it, and it costs one forward pass for all questions. Later questions see earlier
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Encode = Callable[[list[str]], list[list[int]]]

ADJECTIVES = (
    "amber ancient bitter blue brave brisk broad calm clever cold crisp curious damp deep "
    "distant eager early empty faint fair famous fierce firm gentle giddy golden grand green "
    "happy heavy hidden hollow humble idle jolly keen large little lively lone loud lucky "
    "mellow merry modest narrow noble odd pale patient plain polite proud quick quiet rapid "
    "rare rough royal rusty sharp shy silent silver"
).split()
NOUNS = (
    "acorn anchor apple arrow badger barrel basket beacon bell bottle bridge bucket button "
    "candle canyon castle cedar cherry circle cloud comet copper cotton crane desert dolphin "
    "dragon falcon feather fiddle flute forest fountain garden hammer harbor hatchet island "
    "jacket kettle ladder lantern lemon maple marble meadow mirror mountain needle orchard "
    "otter paddle parrot pebble pepper pigeon pillow planet pocket rabbit river saddle saucer "
    "shovel"
).split()
TOPIC_NOUNS = (
    "history future benefits dangers role beauty science price art origin care sound memory "
    "study trade craft"
).split()
TOPIC_PLACES = (
    "coastal modern rural urban northern southern tropical alpine public private regional "
    "common wild celebrated foreign local"
).split()
TOPIC_SUBJECTS = (
    "music farming sailing weaving cooking painting medicine gardens markets railways bridges "
    "theatre schools museums forests rivers"
).split()
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
).split()


LINE_NAMES = [f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS]
SHORTEST_LINE = 8  # tokens; no tokenizer in use makes fewer of one
LINES_HEADER = "Here is a record of lines.\n"
LINE_BEGIN = "line {}: REGISTER_CONTENT is <"
LINE_END = ">\n"
LINE_QUESTION = "What is the REGISTER_CONTENT of line {}? <"

TOPIC_WORDS = (TOPIC_NOUNS, TOPIC_PLACES, TOPIC_SUBJECTS)
TOPICS_HEADER = "Here is a record of our conversation.\n"
TOPIC_BEGIN = "\nUSER: Let us discuss our {} topic,"
TOPIC_END = ".\nASSISTANT:"
TOPIC_QUESTION = "\nUSER: What was our {} topic?\nASSISTANT:"
TOPIC_ANSWER_END = "."


@dataclass(frozen=True)
class Case:
    """A record and the questions about it.

    Attributes:
        tokens: all of it, (length,) int64.
        answers: (begin, end) of each answer in tokens.
        distances: tokens from what each answer repeats to the answer.
    """

    tokens: NDArray[np.int64]
    answers: list[tuple[int, int]]
    distances: list[int]


class Task(Protocol):
    """A kind of record."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """A case of at most, and nearly, length tokens.

        Raises:
            ValueError: length does not hold a record and the questions.
        """
        ...


class Builder:
    """Joins pieces of text into a case; pieces are encoded one by one."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._tokens: list[int] = []
        self._answers: list[tuple[int, int]] = []
        self._distances: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, tokens: Sequence[int]) -> int:
        """Append tokens; where they begin."""
        begin = len(self._tokens)
        self._tokens.extend(tokens)
        return begin

    def ask(self, question: str, answer: str, end: str, source: int) -> None:
        """Append a question and its answer, which stands at token `source` of the record."""
        asked, answered, ended = self._encode([question, answer, end])
        self.add(asked)
        begin = self.add(answered)
        self._answers.append((begin, begin + len(answered)))
        self._distances.append(begin - source)
        self.add(ended)

    def case(self) -> Case:
        """What was built."""
        return Case(np.array(self._tokens, np.int64), self._answers, self._distances)


@dataclass(frozen=True)
class Lines:
    """Named lines with a number each; what is the number of a certain line?

    The lines asked for are drawn uniformly, so their distances spread over the whole record.

    Attributes:
        questions: a case, about different lines where there are enough.
    """

    questions: int = 32
    name: ClassVar[str] = "lines"

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """See `Task`."""
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
        """How many lines leave room for questions about the longest-winded of them."""
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
    """A conversation about numbered topics; what was the first (second, ...) topic?

    As in LongEval the first topics are asked for, which lie farthest back. They are numbered in the
    record, so that a small model can tell which was first, and each has a name of several tokens
    that it shares with others in part.

    Attributes:
        prose: sentences that fill the conversation.
        questions: a case, about the first so many topics; or about any of them.
        topics: in the record; fewer where the length does not hold 40 tokens for each.
        ask_any: whether to ask about any topic, for training, and not about the first ones.
    """

    prose: tuple[str, ...] = field(repr=False)
    questions: int = 5
    topics: int = 12
    ask_any: bool = False
    name: ClassVar[str] = "topics"

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """See `Task`."""
        count = min(self.topics, len(ORDINALS), max(1, length // 40))
        topics = [" the {} of {} {}".format(*map(rng.choice, TOPIC_WORDS)) for _ in range(count)]
        asked = list(range(min(self.questions, count)))
        if self.ask_any:
            asked = list(rng.permutation(count)[: len(asked)])
        builder = Builder(encode)
        builder.add(encode([TOPICS_HEADER])[0])
        room = length - len(builder) - self._fixed_length(encode, topics, asked)
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
        for i in asked:
            builder.ask(TOPIC_QUESTION.format(ORDINALS[i]), topics[i], TOPIC_ANSWER_END, sources[i])
        return builder.case()

    def _fixed_length(self, encode: Encode, topics: list[str], asked: list[int]) -> int:
        """Tokens of everything but the filler."""
        pieces = [
            text
            for ordinal, topic in zip(ORDINALS, topics, strict=False)
            for text in (TOPIC_BEGIN.format(ordinal), topic, TOPIC_END)
        ]
        for i in asked:
            pieces += [TOPIC_QUESTION.format(ORDINALS[i]), topics[i], TOPIC_ANSWER_END]
        return sum(map(len, encode(pieces)))


def filler(
    encode: Encode, prose: Sequence[str], length: int, rng: np.random.Generator
) -> list[int]:
    """So many tokens of running prose, from a sentence drawn at random."""
    tokens: list[int] = []
    sentence = int(rng.integers(len(prose)))
    while len(tokens) < length:
        tokens += encode([" " + prose[sentence % len(prose)]])[0]
        sentence += 1
    return tokens[:length]


def cached_encoder(encode: Encode) -> Encode:
    """The same encoder, asked only once for each piece of text: records repeat theirs."""
    known: dict[str, list[int]] = {}

    def encode_cached(texts: list[str]) -> list[list[int]]:
        if new := [text for text in texts if text not in known]:
            known.update(zip(new, encode(new), strict=True))
        return [known[text] for text in texts]

    return encode_cached


def check_room(room: int, task: str, length: int) -> None:
    """That a record fits."""
    if room < 1:
        raise ValueError(f"length must hold a record of {task} and its questions, got {length}")
