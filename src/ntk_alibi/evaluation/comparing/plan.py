"""The plan of a length study: its lengths, records and methods."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ntk_alibi import _checks
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
        split: the chapters of all prose; see `ntk_alibi.evaluation.harness.datasets.prose`.
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
        for kind in _KINDS:  # texts must fit into memory while they are made
            field_name = f"{kind}_records"
            check_lengths(name, lengths, getattr(self, field_name), of=field_name, minimum=least)
        check_lengths(name, [max(lengths)], self.prose_windows, of="prose_windows", minimum=least)
        if self.lengths is not None:
            multiples = tuple(length / self.train_length for length in self.lengths)
            object.__setattr__(self, "multiples", multiples)
        if not self.tasks:
            *others, last = self.record_fields
            raise ValueError(
                f"{', '.join(others)}, {last} or prose_windows must be at least 1, got 0"
            )

    @property
    def record_fields(self) -> list[str]:
        """The names of the fields that count records."""
        return [f"{kind}_records" for kind in _KINDS]

    @property
    def token_lengths(self) -> list[int]:
        """The lengths of the records in tokens, in the order of `multiples`."""
        return [round(multiple * self.train_length) for multiple in self.multiples]

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """Metadata of the study's tasks, by their names without "ntk_alibi_"."""
        lengths = self.token_lengths
        split = {"split": self.split} if self.split != "held-out" else {}
        tasks: dict[str, dict[str, Any]] = {}
        for kind, task in _KINDS.items():
            if records := getattr(self, f"{kind}_records"):
                tasks[task] = {"records": records, **self._questions(kind)}
                tasks[task] |= {"lengths": lengths, "seed": self.seed, **split}
        if self.prose_windows:
            longest = math.ceil(2 * max(self.multiples))
            tasks["prose"] = {"lengths": [max(lengths)], "windows": self.prose_windows}
            tasks["prose"] |= {"bins": longest, **split}
        return tasks

    def _questions(self, kind: str) -> dict[str, int]:
        if kind == "topic":
            return {"questions": self.topic_questions}
        if kind.endswith("line"):
            shortest = round(min(1, *self.multiples) * self.train_length)
            return {"questions": min(self.line_questions, max(1, shortest // 64))}
        return {}


#: Kinds of records, as the fields of a plan name them, and their tasks.
_KINDS = {
    "line": "lines",
    "topic": "topics",
    "passkey": "passkey",
    "multikey": "multikey",
    "other_line": "other_lines",
}

#: What --quick changes: fewer and shorter records, no prose.
QUICK: dict[str, Any] = {
    "multiples": (1, 2, 3),
    "line_records": 3,
    "topic_records": 3,
    "prose_windows": 0,
}
