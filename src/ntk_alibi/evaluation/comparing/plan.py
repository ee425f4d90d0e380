"""The plan of a length study: its lengths, records and methods."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

#: Methods that are compared by default.
DEFAULT_METHODS = (
    "original",
    "interpolation:2",
    "interpolation:4",
    "ntk:2",
    "ntk:4",
    "dynamic-ntk:1",
    "dynamic-ntk:2",
)

#: The harness's samples of each method and task.
Samples = dict[str, dict[str, list[dict[str, Any]]]]


@dataclass(frozen=True)
class Plan:
    """Lengths, records and methods of a study; the defaults are those of `ntk-alibi eval`.

    Attributes:
        train_length: training length in tokens, the unit of all lengths and distances below.
        methods: method names for `parse_method`.
        multiples: multiples of the training length at which retrieval is tested.
        line_records: number of records of lines for each length.
        line_questions: number of questions about each of them; at most one for every 64 tokens of
            the training length is used.
        topic_records: number of conversations for each length.
        topic_questions: number of questions about each of them.
        prose_windows: number of windows for the perplexity, of the greatest length; 0 for none.
        seed: seed of the records; all methods read the same records.
        split: chapters of the prose: "held-out", or "training" for those that the nano BLOOM was
            trained on.
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
    split: str = field(default="held-out", kw_only=True)

    def __post_init__(self) -> None:
        if not (self.line_records or self.topic_records or self.prose_windows):
            raise ValueError(
                "line_records, topic_records or prose_windows must be at least 1, got 0"
            )

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """Metadata of each harness task of the study, by the task's name without "ntk_alibi_"."""
        lengths = [round(multiple * self.train_length) for multiple in self.multiples]
        questions = min(self.line_questions, max(1, self.train_length // 64))
        drawn = {"lengths": lengths, "seed": self.seed}
        longest = math.ceil(2 * max(self.multiples))
        tasks = {
            "lines": {"records": self.line_records, "questions": questions, **drawn},
            "topics": {"records": self.topic_records, "questions": self.topic_questions, **drawn},
            "prose": {"lengths": [max(lengths)], "windows": self.prose_windows, "bins": longest},
        }
        if self.split != "held-out":
            tasks["prose"]["split"] = self.split
        counts = {
            "lines": self.line_records,
            "topics": self.topic_records,
            "prose": self.prose_windows,
        }
        return {name: made for name, made in tasks.items() if counts[name]}


#: Changes that --quick makes: fewer and shorter records, no prose.
QUICK: dict[str, Any] = {
    "multiples": (1, 2, 3),
    "line_records": 3,
    "topic_records": 3,
    "prose_windows": 0,
}
