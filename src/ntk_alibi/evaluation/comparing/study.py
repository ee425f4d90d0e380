"""A study: its methods, and its texts, which are records with questions and windows of prose."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.records import corpus, record
from ntk_alibi.evaluation.records.kinds import record_kind
from ntk_alibi.evaluation.records.record import Case, Encode
from ntk_alibi.methods import Method

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: The task of windows of prose; the other tasks are kinds of records.
PROSE = "prose"


@dataclass(frozen=True)
class Text:
    """A text that each method of a study reads in one pass.

    Attributes:
        task: the kind of records, or `PROSE`.
        length: its length in tokens in the plan.
        number: its number among the texts of its task and length.
    """

    task: str
    length: int
    number: int

    @property
    def name(self) -> str:
        """The name of the text in the store of answers."""
        return f"{self.task}/{self.length}/{self.number}"

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The tokens of the text, (tokens,)."""
        raise NotImplementedError

    def read(self, model: Any) -> list[Any]:
        """Return what the model answers in one pass."""
        raise NotImplementedError

    def places(self) -> list[tuple[int, float]]:
        """Return the distance of each answer, and its depth in the record; none without questions.

        A depth of 0 is the beginning of the record, 1 the first question.
        """
        return []


@dataclass(frozen=True)
class Record(Text):
    """A record with questions."""

    case: Case

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The tokens of the record, the questions and the answers."""
        return self.case.tokens

    def read(self, model: Any) -> list[bool]:
        """Return for each question whether it is answered."""
        return record.answered(model, self.case)

    def places(self) -> list[tuple[int, float]]:
        """Return the distance and the depth of each answer."""
        first, _ = self.case.answers[0]
        pairs = zip(self.case.answers, self.case.distances, strict=True)
        return [(distance, (begin - distance) / first) for (begin, _), distance in pairs]


@dataclass(frozen=True)
class Window(Text):
    """A window of prose.

    Attributes:
        window: its tokens.
        ranges: number of equal ranges of positions.
    """

    window: NDArray[np.int64]
    ranges: int

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The tokens of the window."""
        return self.window

    def read(self, model: Any) -> list[float]:
        """Return the mean nats per token in each range of positions."""
        return record.nats(model, self.window, self.ranges)


@dataclass(frozen=True)
class Study:
    """A plan with its methods, and its texts with the shortest first."""

    plan: Plan
    methods: Sequence[Method]
    texts: Sequence[Text]

    def __str__(self) -> str:
        tokens = sum(len(text.tokens) for text in self.texts)
        lengths = sorted({text.length for text in self.texts})
        span = " to ".join(str(length) for length in dict.fromkeys((lengths[0], lengths[-1])))
        return (
            f"{len(self.texts)} texts of {span} tokens, by {len(self.methods)} methods: "
            f"{tokens * len(self.methods):,} tokens"
        )


def texts_of(plan: Plan, tokenizer: PreTrainedTokenizerBase) -> list[Text]:
    """Make the texts of a plan, the shortest first.

    Raises:
        ValueError: a length is too small for the questions, or there is too little prose.
    """
    encode = record.cached_encoder(record.encoder(tokenizer))
    made = [*_records(plan, encode), *_windows(plan, record.encoder(tokenizer))]
    return sorted(made, key=lambda text: text.length)


def _records(plan: Plan, encode: Encode) -> Iterator[Text]:
    for kind, (count, questions) in plan.records.items():
        for length in dict.fromkeys(plan.token_lengths):
            drawn = record_kind(kind, length, questions, plan.split)
            for number in range(count):
                generator = record.record_generator(kind, length, number, plan.seed)
                yield Record(kind, length, number, drawn.case(encode, length, generator))


def _windows(plan: Plan, encode: Encode) -> Iterator[Text]:
    if not plan.prose_windows:
        return
    length, ranges = max(plan.token_lengths), math.ceil(2 * max(plan.multiples))
    prose = corpus.SPLITS[plan.split]()
    windows = corpus.prose_windows(encode, prose, length, plan.prose_windows)
    for number, tokens in enumerate(windows):
        yield Window(PROSE, length, number, tokens, ranges)


def digest(texts: Sequence[Text]) -> str:
    """Return a digest of the tokens of texts, and so of all that they were made from."""
    found = hashlib.sha256()
    for text in texts:
        found.update(f"{text.name} {len(text.tokens)};".encode())
        found.update(text.tokens.tobytes())
    return found.hexdigest()[:16]
