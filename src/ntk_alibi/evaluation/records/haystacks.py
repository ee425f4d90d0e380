"""Needle-in-a-haystack records: a pass key or several keys in prose.

They resemble tasks of RULER (Hsieh et al. 2024, arXiv:2404.06654) without copying them: the prose
is the package's, and the model predicts the answers token by token, as in record.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ntk_alibi.evaluation.records.record import Builder, Case, Encode, check_room
from ntk_alibi.evaluation.records.words import LINE_NAMES

PASSKEY = "\nThe pass key is"
PASSKEY_QUESTION = "\nWhat is the pass key? The pass key is"

MULTIKEY = "\nThe magic number of {} is"
MULTIKEY_QUESTION = "\nWhat is the magic number of {}? The magic number of {} is"

#: Text after the answer in a sentence, and after the answer to a question.
SENTENCE_END, STOP = ".\n", "."


@dataclass(frozen=True)
class _Needle:
    """A sentence in the prose, and a question about it.

    Attributes:
        before: text of the sentence before the answer.
        answer: the answer that the sentence contains.
        question: the question about the answer, or "" for none.
    """

    before: str
    answer: str
    question: str


@dataclass(frozen=True)
class _Haystack:
    """The base of the record kinds here.

    Attributes:
        prose: sentences around the needles.
        questions: number of questions about a record.
    """

    prose: tuple[str, ...] = field(repr=False)
    questions: int = 1

    name: ClassVar[str]

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case; see `RecordKind`."""
        needles = self.needles(rng)
        stated = [(n.before, n.answer, SENTENCE_END) for n in needles]
        asked = [(n.question, n.answer, STOP) for n in needles if n.question]
        builder = Builder(encode)
        room = builder.room(length, [*stated, *asked])
        check_room(room, self.name, length)
        places = np.diff([0, *np.sort(rng.integers(room + 1, size=len(needles))), room])
        sources = []
        for sentence, share in zip(stated, places[:-1], strict=True):
            builder.fill(self.prose, int(share), rng)
            sources.append(builder.state(*sentence))
        builder.fill(self.prose, int(places[-1]), rng)
        questioned = [place for n, place in zip(needles, sources, strict=True) if n.question]
        for question, source in zip(asked, questioned, strict=True):
            builder.ask(*question, source)
        return builder.case()

    def needles(self, rng: np.random.Generator) -> list[_Needle]:
        """Draw the needles in their order in the record."""
        raise NotImplementedError


@dataclass(frozen=True)
class Passkey(_Haystack):
    """Records of prose with one pass key in it (Mohtashami and Jaggi 2023, arXiv:2305.16300)."""

    name: ClassVar[str] = "passkey"

    def needles(self, rng: np.random.Generator) -> list[_Needle]:
        """Draw the one needle and its question."""
        number = f" {rng.integers(10000, 100000)}"
        return [_Needle(PASSKEY, number, PASSKEY_QUESTION)]


@dataclass(frozen=True)
class MultiKey(_Haystack):
    """Records of prose with several named keys, and questions about some of them.

    Attributes:
        prose: sentences around the keys.
        questions: number of questions about a record, each about another key.
        keys: number of keys; at least the number of questions is used.
    """

    questions: int = 8
    keys: int = 16
    name: ClassVar[str] = "multikey"

    def needles(self, rng: np.random.Generator) -> list[_Needle]:
        """Draw keys with different names, and questions about different ones."""
        count = max(self.keys, self.questions)
        names = [LINE_NAMES[i] for i in rng.choice(len(LINE_NAMES), count, replace=False)]
        asked_names = set(rng.choice(count, self.questions, replace=False).tolist())
        return [
            _Needle(
                MULTIKEY.format(name),
                f" {rng.integers(1000, 10000)}",
                MULTIKEY_QUESTION.format(name, name) if i in asked_names else "",
            )
            for i, name in enumerate(names)
        ]
