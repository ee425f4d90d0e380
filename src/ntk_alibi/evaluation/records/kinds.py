"""The kinds of records by name, and the records of one kind, length and number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.evaluation.records import corpus, haystacks
from ntk_alibi.evaluation.records.longeval import Lines, Topics
from ntk_alibi.evaluation.records.record import RecordKind
from ntk_alibi.evaluation.records.words import OTHER_LINE_NAMES

#: By default a record has at most one question for so many tokens.
TOKENS_PER_QUESTION = 64

#: For each kind, a function that makes it from sentences of prose, its default number of questions,
#: and the greatest number of questions of its length.
KINDS: dict[str, Callable[[tuple[str, ...], int], Any]] = {
    "lines": lambda prose, _: Lines(prose=prose),
    "topics": lambda prose, _: Topics(prose),
    "passkey": lambda prose, _: haystacks.Passkey(prose),
    "multikey": lambda prose, most: haystacks.MultiKey(prose, keys=min(16, most)),
    "other-lines": lambda prose, _: Lines(names=OTHER_LINE_NAMES, prose=prose),
}


def record_kind(name: str, length: int, questions: int | None, split: str) -> RecordKind:
    """Return what draws records of a kind.

    Args:
        name: a name in `KINDS`; the names of "other-lines" are in no training record of the nano
            models.
        length: length of the records in tokens.
        questions: number of questions about each record; None for the kind's, but at most one for
            every `TOKENS_PER_QUESTION` tokens.
        split: the chapters of the prose, by a name in `corpus.SPLITS`.
    """
    most = max(1, length // TOKENS_PER_QUESTION)
    kind = KINDS[name](_sentences(split), most)
    chosen = min(kind.questions, most) if questions is None else questions
    drawn: RecordKind = replace(kind, questions=_checks.integer("questions", chosen, minimum=1))
    return drawn


@cache
def _sentences(split: str) -> tuple[str, ...]:
    texts = corpus.SPLITS[_checks.choice("split", split, corpus.SPLITS)]()
    return corpus.sentences([chapter for text in texts for chapter in text])
