"""The summary of a length study in data frames: from stored answers, or from JSON."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks, _files
from ntk_alibi.evaluation.comparing.intervals import accuracy_entry, half_width, paired_difference
from ntk_alibi.evaluation.comparing.study import PROSE

if TYPE_CHECKING:
    from pandas import DataFrame

    from ntk_alibi.evaluation.comparing.plan import Plan
    from ntk_alibi.evaluation.comparing.store import AnswerStore
    from ntk_alibi.evaluation.comparing.study import Study, Text

#: Least width of ranges of distance in training lengths, and their greatest number.
DISTANCE_BIN, DISTANCE_BINS = 0.5, 8

#: Number of ranges of depth between the beginning of a record and its questions.
DEPTH_BINS = 8

_ACCURACY = ["cases", "accuracy", "low", "high"]

#: The columns of each frame; _TEXTS are texts, all others numeric, or NaN.
COLUMNS = {
    "retrieval": ["task", "method", "multiple", *_ACCURACY, "gain", "gain_half_width"],
    "by_distance": ["task", "method", "begin", "end", *_ACCURACY],
    "by_depth": ["task", "method", "multiple", "begin", "end", *_ACCURACY],
    "perplexity": ["method", "begin", "end", "nats", "difference", "half_width"],
}
_TEXTS = ["task", "method"]


@dataclass(frozen=True, eq=False)
class Summary:
    """The results of a length study, which notebooks display as tables.

    The four frames of pandas may be given as lists of their rows.

    Attributes:
        train_length: training length in tokens.
        methods: names of the methods; the others are compared with the first.
        retrieval: for each task, method and multiple of the training length, the number of cases,
            the accuracy with its 95 % interval (low, high), and the gain over the first method on
            the same questions with its 95 % half-width, paired by record.
        by_distance: accuracies over the records of all lengths, by the distance of the answer
            (begin, end, in training lengths).
        by_depth: accuracies for each multiple, by the depth of the answer in the record (begin,
            end; 0 is the beginning of the record, 1 the first question).
        perplexity: for each method and range of positions (begin, end, in training lengths), the
            nats per token, and the difference from the first method, paired by window, with its
            95 % half-width.
        settings: what else the answers depend on: a digest of the weights, their dtype, the patch
            of each method, versions.

    Raises:
        ValueError: a frame lacks columns or has others' methods, an accuracy is not between 0 and
            1, or there are no results.

    Example:
        >>> from ntk_alibi.evaluation import Summary
        >>> cell = {"task": "lines", "method": "original", "multiple": 2.0, "cases": 64,
        ...         "accuracy": 0.5, "low": 0.38, "high": 0.62}
        >>> Summary(2048, ["original"], retrieval=[cell]).retrieval["accuracy"].tolist()
        [0.5]
    """

    train_length: int
    methods: Sequence[str]
    retrieval: DataFrame = ()
    by_distance: DataFrame = ()
    by_depth: DataFrame = ()
    perplexity: DataFrame = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _checks.integer("train_length", self.train_length, minimum=1)
        made: dict[str, Any] = {"methods": tuple(self.methods)}
        for name in COLUMNS:
            with _files.readable("a list of results", name):
                made[name] = frame = _frame(name, getattr(self, name))
            if not set(frame["method"]) <= set(made["methods"]):
                raise ValueError(f"{name} must have the methods {made['methods']}")
            if "accuracy" in frame and not frame["accuracy"].fillna(0.0).between(0, 1).all():
                raise ValueError(f"accuracy of {name} must be between 0 and 1")
        if made["retrieval"].empty and made["perplexity"].empty:
            raise ValueError("retrieval or perplexity must hold results, got none")
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def to_json(self) -> str:
        """Return what `ntk-alibi eval --json` prints and `read_summary` reads."""
        return _files.json_text(vars(self))

    def _repr_html_(self) -> str:
        from ntk_alibi.evaluation.report import tables

        return "".join(map(tables.html, tables.study_tables(self)))


def summarise(study: Study, store: AnswerStore, **others: Any) -> Summary:
    """Summarise what is stored of a study; a text counts once all its methods have read it.

    Args:
        study: the study.
        store: the answers.
        **others: settings of the summary.
    """
    plan, names = study.plan, [method.name for method in study.methods]
    read = [text for text in study.texts if store.has(names, text.name)]
    answers = _answers(plan, [text for text in read if text.task != PROSE], names, store)
    windows = [text.name for text in read if text.task == PROSE]
    longest = max(plan.multiples)
    width = max(DISTANCE_BIN, longest / DISTANCE_BINS)
    distances = np.arange(0.0, longest + width, width).tolist()
    depths = np.linspace(0.0, 1.0, DEPTH_BINS + 1).tolist()
    nats = {name: np.array([store.get(name, window) for window in windows]) for name in names}
    rows: dict[str, Any] = {
        "retrieval": _retrieval(answers, names[0]),
        "by_distance": _by_range(answers, ["task", "method"], "distance", distances),
        "by_depth": _by_range(answers, ["task", "method", "multiple"], "depth", depths),
        "perplexity": _perplexity(nats, names[0], longest) if windows else [],
    }
    return Summary(plan.train_length, names, **rows, **others)


def _answers(
    plan: Plan, records: Sequence[Text], names: Sequence[str], store: AnswerStore
) -> DataFrame:
    """Return a frame with a row for each answer."""
    import pandas as pd

    columns = ["task", "method", "multiple", "record", "distance", "depth", "right"]
    multiples = dict(zip(plan.token_lengths, plan.multiples, strict=True))
    rows = [
        (kind, name, multiples[text.length], text.name, distance / plan.train_length, depth, right)
        for kind in plan.records
        for name in names
        for text in records
        if text.task == kind
        for (distance, depth), right in zip(text.places(), store.get(name, text.name), strict=True)
    ]
    return pd.DataFrame(rows, columns=columns)


def _counts(answers: DataFrame) -> tuple[list[int], list[int]]:
    """Return the right answers and the questions of each record; a record is a cluster."""
    counts = answers.groupby("record")["right"].agg(["sum", "count"])
    return counts["sum"].tolist(), counts["count"].tolist()


def _retrieval(answers: DataFrame, first: str) -> list[dict[str, Any]]:
    cells = answers.groupby(["task", "method", "multiple"], sort=False)
    counts = {names: _counts(group) for names, group in cells}
    rows = []
    for (task, method, multiple), (right, questions) in counts.items():
        gain, width = paired_difference(right, counts[task, first, multiple][0], questions)
        row = {"task": task, "method": method, "multiple": multiple}
        row |= accuracy_entry(right, questions)
        rows.append({**row, "gain": gain, "gain_half_width": width})
    return rows


def _by_range(
    answers: DataFrame, by: list[str], column: str, edges: Sequence[float]
) -> list[dict[str, Any]]:
    """Return the accuracy of each group of answers in each range [begin, end) of a column."""
    rows = []
    for names, group in answers.groupby(by, sort=False):
        for begin, end in itertools.pairwise(edges):
            inside = group[group[column].between(begin, end, inclusive="left")]
            of_range = {"begin": begin, "end": end, **accuracy_entry(*_counts(inside))}
            rows.append({**dict(zip(by, names, strict=True)), **of_range})
    return rows


def _perplexity(
    nats: Mapping[str, NDArray[np.float64]], first: str, longest: float
) -> list[dict[str, Any]]:
    rows = []
    for method, windows in nats.items():
        paired = windows - nats[first]
        edges = np.linspace(0.0, longest, windows.shape[1] + 1).tolist()
        figures = (windows.mean(axis=0), paired.mean(axis=0), half_width(paired))
        rows += [
            dict(zip(COLUMNS["perplexity"], (method, *row), strict=True))
            for row in zip(edges[:-1], edges[1:], *(x.tolist() for x in figures), strict=True)
        ]
    return rows


def _frame(name: str, rows: Any) -> DataFrame:
    """Return rows as a frame with its columns; gains may be missing."""
    import pandas as pd

    gains = {"gain": math.nan, "gain_half_width": math.nan}
    given = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
    whole = [gains | row for row in given]
    frame = pd.DataFrame(whole, columns=None if whole else COLUMNS[name])[COLUMNS[name]]
    numeric = [column for column in COLUMNS[name] if column not in _TEXTS]
    frame[numeric] = frame[numeric].apply(pd.to_numeric)
    return frame


def read_summary(path: str | os.PathLike[str]) -> Summary:
    """Read a summary that `ntk-alibi eval --json` printed.

    Raises:
        OSError: the file cannot be read.
        ValueError: it contains no summary.
    """
    value = _files.read_json(path)
    with _files.readable("a summary that `ntk-alibi eval --json` printed", path):
        if not isinstance(value, Mapping):
            raise ValueError(f"it must be an object, got {str(value)[:40]}")
        needed = ("train_length", "methods", *COLUMNS)
        _checks.keys("it", value, required=needed, optional=("settings",))
        return Summary(**value)
