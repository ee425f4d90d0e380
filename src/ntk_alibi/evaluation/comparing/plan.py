"""The plan of a length study: its lengths, records and methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.evaluation.records.kinds import TOKENS_PER_QUESTION
from ntk_alibi.evaluation.records.record import check_lengths
from ntk_alibi.methods import parse_method

#: The methods of a comparison by default.
DEFAULT_METHODS = (
    "original",
    "interpolation:4",
    "ntk:4",
    "dynamic-ntk",
    "dynamic-flat",
    "dynamic-flat:logn=0.5",
)


@dataclass(frozen=True)
class Plan:
    """Lengths, records and methods of a study, by default as in `ntk-alibi eval`.

    Attributes:
        train_length: training length in tokens, the unit of lengths and distances in results.
        methods: names for `parse_method`.
        multiples: the lengths of records in training lengths.
        lengths: the lengths of records in tokens, in place of multiples.
        line_records: how many records of lines for each length.
        line_questions: number of questions about each of them, but at most one for every 64 tokens
            of the training length.
        topic_records: how many conversations for each length.
        topic_questions: number of questions about each of them.
        passkey_records, multikey_records: how many records of prose with one pass key, and with
            several keys.
        other_line_records: how many records of lines with names of other words, of several tokens.
        prose_windows: number of windows for the perplexity, of the greatest length; 0 for none.
        seed: seed of the records, which all methods read.
        split: the chapters of all prose; by a name in `corpus.SPLITS`.
    """

    train_length: int
    methods: tuple[str, ...] = DEFAULT_METHODS
    multiples: tuple[float, ...] = (1, 1.5, 2, 3, 4)
    line_records: int = 8
    line_questions: int = 32
    topic_records: int = 12
    topic_questions: int = 5
    prose_windows: int = 8
    seed: int = 2026
    passkey_records: int = field(default=0, kw_only=True)
    multikey_records: int = field(default=0, kw_only=True)
    other_line_records: int = field(default=0, kw_only=True)
    split: str = field(default="held-out", kw_only=True)
    lengths: tuple[int, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _checks.integer("train_length", self.train_length, minimum=1)
        for name in ("methods", "multiples", "lengths"):
            given = getattr(self, name)
            if isinstance(given, str) or (given is not None and not len(given)):
                raise ValueError(f"{name} must hold at least one, got {given!r}")
        for method in self.methods:
            parse_method(method, max(2, self.train_length))
        for multiple in self.multiples:
            _checks.finite("multiples", multiple, minimum=0.0, inclusive=False)
        for name in ("prose_windows", "seed", "line_questions", "topic_questions"):
            least = int(name.endswith("questions"))
            _checks.integer(name, getattr(self, name), minimum=least)
        name, lengths, least = "lengths", self.lengths, 1
        if lengths is None:
            name = f"multiples of the training length {self.train_length}"
            lengths, least = tuple(self.token_lengths), 0
        for field_name in RECORD_FIELDS:  # texts must fit into memory
            check_lengths(name, lengths, getattr(self, field_name), of=field_name, minimum=least)
        check_lengths(name, [max(lengths)], self.prose_windows, of="prose_windows", minimum=least)
        if self.lengths is not None:
            multiples = tuple(length / self.train_length for length in self.lengths)
            object.__setattr__(self, "multiples", multiples)
        if not (self.records or self.prose_windows):
            raise ValueError(
                f"{', '.join(RECORD_FIELDS)} or prose_windows must be at least 1, got 0"
            )

    @property
    def token_lengths(self) -> list[int]:
        """The lengths of the records in tokens, in the order of `multiples`."""
        return [round(multiple * self.train_length) for multiple in self.multiples]

    @property
    def records(self) -> dict[str, tuple[int, int | None]]:
        """For each kind of records that the study has, their number and their questions.

        There are so many records of each length; None questions are the kind's own number.
        """
        shortest = round(min(1, *self.multiples) * self.train_length)
        lines = min(self.line_questions, max(1, shortest // TOKENS_PER_QUESTION))
        questions = {"lines": lines, "other-lines": lines, "topics": self.topic_questions}
        counts = {kind: getattr(self, name) for name, kind in RECORD_FIELDS.items()}
        return {kind: (count, questions.get(kind)) for kind, count in counts.items() if count}


#: Fields of a plan that count records, and the kinds of these records.
RECORD_FIELDS = {
    "line_records": "lines",
    "topic_records": "topics",
    "passkey_records": "passkey",
    "multikey_records": "multikey",
    "other_line_records": "other-lines",
}

#: What --quick changes: fewer and shorter records, no conversations and no prose.
QUICK: dict[str, Any] = {
    "multiples": (1, 2, 3),
    "line_records": 3,
    "topic_records": 0,
    "multikey_records": 3,
    "prose_windows": 0,
}
