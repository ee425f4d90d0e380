"""Needle-in-a-haystack records: a pass key, several keys, or chains of variables in prose.

They resemble tasks of RULER (Hsieh et al. 2024, arXiv:2404.06654) without copying them: the prose
is the package's, and the model predicts the answers token by token, as in record.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ntk_alibi.evaluation.records.record import Builder, Case, Encode, check_room
from ntk_alibi.evaluation.records.words import ADJECTIVES, LINE_NAMES

PASSKEY = "\nThe pass key is"
PASSKEY_QUESTION = "\nWhat is the pass key? The pass key is"

MULTIKEY = "\nThe magic number of {} is"
MULTIKEY_QUESTION = "\nWhat is the magic number of {}? The magic number of {} is"

VARIABLE = "\nVAR {} ="
VARIABLE_QUESTION = "\nWhich value has VAR {}? VAR {} has the value"

#: Text after the answer in a sentence, and after the answer to a question.
SENTENCE_END, STOP = ".\n", "."


@dataclass(frozen=True)
class _Needle:
    """A sentence in the prose, and a question about it.

    Attributes:
        before: text of the sentence before the answer.
        answer: the answer that the sentence contains.
        question: the question, or "" for none.
        source: index of the needle with the answer to the question.
    """

    before: str
    answer: str
    question: str
    source: int


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
        asked_needles = [needle for needle in needles if needle.question]
        stated = [(n.before, n.answer, SENTENCE_END) for n in needles]
        asked = [(n.question, needles[n.source].answer, STOP) for n in asked_needles]
        builder = Builder(encode)
        room = builder.room(length, [*stated, *asked])
        check_room(room, self.name, length)
        places = np.diff([0, *np.sort(rng.integers(room + 1, size=len(needles))), room])
        sources = []
        for sentence, share in zip(stated, places[:-1], strict=True):
            builder.fill(self.prose, int(share), rng)
            sources.append(builder.state(*sentence))
        builder.fill(self.prose, int(places[-1]), rng)
        for needle, question in zip(asked_needles, asked, strict=True):
            builder.ask(*question, sources[needle.source])
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
        return [_Needle(PASSKEY, number, PASSKEY_QUESTION, 0)]


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
                i,
            )
            for i, name in enumerate(names)
        ]


@dataclass(frozen=True)
class Variables(_Haystack):
    """Records of prose with chains of variables, and a question for the value of each last one.

    Attributes:
        prose: sentences around the assignments.
        questions: number of chains in a record, each with one question.
        hops: number of assignments in a chain from one variable to another.
    """

    questions: int = 4
    hops: int = 2
    name: ClassVar[str] = "variables"

    def needles(self, rng: np.random.Generator) -> list[_Needle]:
        """Draw interleaved chains; the first needle of a chain has the value."""
        links = self.hops + 1
        chosen = rng.choice(len(ADJECTIVES), self.questions * links, replace=False)
        names = [ADJECTIVES[i].upper() for i in chosen]
        order = rng.permutation(np.repeat(np.arange(self.questions), links)).tolist()
        done = [0] * self.questions
        first = [0] * self.questions
        needles: list[_Needle] = []
        for chain in order:
            link = chain * links + done[chain]
            if done[chain] == 0:
                first[chain], value = len(needles), f" {rng.integers(10000, 100000)}"
            else:
                value = f" VAR {names[link - 1]}"
            last = done[chain] == self.hops
            question = VARIABLE_QUESTION.format(names[link], names[link]) if last else ""
            needles.append(_Needle(VARIABLE.format(names[link]), value, question, first[chain]))
            done[chain] += 1
        return needles
