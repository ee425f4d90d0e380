"""Summary of a length study: from the harness's samples, or as it was stored in JSON."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks, _files
from ntk_alibi.evaluation.comparing.intervals import (
    accuracy_entry,
    half_width,
    paired_difference,
)
from ntk_alibi.evaluation.comparing.plan import Plan, Samples

#: Least width of the distance ranges, in training lengths, and their greatest number.
DISTANCE_BIN, DISTANCE_BINS = 0.5, 8

#: Number of depth ranges between the beginning of a record and its questions.
DEPTH_BINS = 8


class Summary(dict[str, Any]):
    """A dictionary of plain values that notebooks display as tables."""

    def _repr_html_(self) -> str:
        from ntk_alibi.evaluation.report import tables

        return "".join(map(tables.html, tables.study_tables(self)))


def summarise(plan: Plan, samples: Samples) -> Summary:
    """Summarise the samples of a finished study as plain values.

    Args:
        plan: the plan of the study.
        samples: the harness's samples of each method and task.

    Returns:
        A dictionary with these keys:

        - train_length, and the names of the methods;
        - retrieval: for each task, method and multiple of the training length, the number of cases,
          the accuracy and its 95 % interval (low, high), and the gain over the first method on the
          same questions with its 95 % half-width, paired by record;
        - by_distance: the same figures over the records of all lengths, by the distance of the
          answer (begin, end, in training lengths);
        - by_depth: the same figures for each multiple, by the depth of the answer in the record
          (begin, end; 0 is the beginning of the record, 1 the first question);
        - perplexity: for each method and range of positions (begin, end, in training lengths), the
          nats per token and the difference from the first method, paired by window, with its 95 %
          half-width;
        - records: for each method, the right answers and the questions of each record;
        - windows: for each method, the nats per token of each window of prose.
    """
    methods = list(dict.fromkeys(plan.methods))
    retrieval, by_distance, by_depth = [], [], []
    of_first: dict[tuple[str, float], list[list[bool]]] = {}
    for task in plan.tasks:
        for name in methods:
            answers = _answers(samples[name].get(f"ntk_alibi_{task}", []))
            if task == "prose" or not answers:
                continue
            of = {"task": task, "method": name}
            for multiple in plan.multiples:
                length = round(multiple * plan.train_length)
                of_length = [a for a in answers if a["length"] == length]
                right = [a["right"] for a in of_length]
                gain = _gain(right, of_first.setdefault((task, multiple), right))
                retrieval.append({**of, "multiple": multiple, **_accuracy(right), **gain})
                by_depth += [{**of, "multiple": multiple, **cell} for cell in _by_depth(of_length)]
            longest = max(plan.multiples)
            by_distance += [
                {**of, **cell} for cell in _by_distance(answers, plan.train_length, longest)
            ]
    return Summary(
        {
            "train_length": plan.train_length,
            "methods": methods,
            "retrieval": retrieval,
            "by_distance": by_distance,
            "by_depth": by_depth,
            "perplexity": _perplexity(plan, samples),
            "records": {name: _counts(plan, samples[name]) for name in methods},
            "windows": {
                name: nats_by_window(samples[name]["ntk_alibi_prose"]).mean(axis=1).tolist()
                for name in methods
                if "ntk_alibi_prose" in samples[name]
            },
        }
    )


def _counts(plan: Plan, samples: dict[str, list[dict[str, Any]]]) -> list[list[int]]:
    """Count the right answers and the questions of each record, over all tasks."""
    records = [
        answer["right"]
        for task in plan.tasks
        if task != "prose"
        for answer in _answers(samples.get(f"ntk_alibi_{task}", []))
    ]
    return [[sum(right), len(right)] for right in records]


def _answers(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return length, distances and depths of each record, and whether each answer is right."""
    keys = ("length", "distances", "depths")
    return [
        {
            **{key: sample["doc"].get(key) for key in keys},
            "right": [greedy for _, greedy in sample["filtered_resps"]],
        }
        for sample in sorted(samples, key=lambda sample: sample["doc_id"])
    ]


def _accuracy(right: list[list[bool]]) -> dict[str, Any]:
    """Compute accuracy and interval of clusters of answers."""
    return accuracy_entry([sum(cluster) for cluster in right], list(map(len, right)))


def _gain(right: list[list[bool]], first: list[list[bool]]) -> dict[str, Any]:
    """Compute the gain in accuracy over the first method, paired by record."""
    pairs = [(sum(x), sum(y), len(x)) for x, y in zip(right, first, strict=True) if x]
    if not pairs:
        return {"gain": None, "gain_half_width": None}
    gain, width = paired_difference(*zip(*pairs, strict=True))
    return {"gain": gain, "gain_half_width": width}


def _by_distance(
    answers: list[dict[str, Any]], train_length: int, longest: float
) -> list[dict[str, Any]]:
    width = max(DISTANCE_BIN, longest / DISTANCE_BINS)
    edges = np.arange(0.0, longest + width, width)
    entries = []
    for begin, end in itertools.pairwise(edges.tolist()):
        inside = _inside(answers, "distances", begin, end, train_length)
        entries.append({"begin": begin, "end": end, **_accuracy(inside)})
    return entries


def _by_depth(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    edges = np.linspace(0.0, 1.0, DEPTH_BINS + 1).tolist()
    return [
        {"begin": begin, "end": end, **_accuracy(_inside(answers, "depths", begin, end))}
        for begin, end in itertools.pairwise(edges)
    ]


def _inside(
    answers: list[dict[str, Any]], key: str, begin: float, end: float, unit: float = 1
) -> list[list[bool]]:
    """Select from each record the answers whose value / unit lies in [begin, end)."""
    return [
        [
            right
            for right, value in zip(a["right"], a[key], strict=True)
            if begin <= value / unit < end
        ]
        for a in answers
    ]


def nats_by_window(samples: Sequence[dict[str, Any]]) -> NDArray[np.float64]:
    """Return the mean nats per token, (windows, ranges of positions)."""
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    likelihoods = [[ll for ll, _ in sample["filtered_resps"]] for sample in ordered]
    tokens = [sample["doc"]["tokens"] for sample in ordered]
    nats: NDArray[np.float64] = -np.array(likelihoods) / np.array(tokens)
    return nats


def _perplexity(plan: Plan, samples: Samples) -> list[dict[str, Any]]:
    if "prose" not in plan.tasks:
        return []
    nats = {name: nats_by_window(samples[name]["ntk_alibi_prose"]) for name in plan.methods}
    entries = []
    for name, windows in nats.items():
        paired = windows - nats[plan.methods[0]]
        widths = half_width(paired)
        width = max(plan.multiples) / windows.shape[1]
        for i, mean in enumerate(windows.mean(axis=0)):
            entries.append(
                {
                    "method": name,
                    "begin": i * width,
                    "end": (i + 1) * width,
                    "nats": float(mean),
                    "difference": float(paired.mean(axis=0)[i]),
                    "half_width": float(widths[i]),
                }
            )
    return entries


#: Keys of the entries of each list: texts, numbers, and numbers that may be None: those of no
#: cases, and half-widths of a single record or window, which are NaN in a study.
_ACCURACY = ("accuracy", "low", "high")
_ENTRIES: dict[str, tuple[Collection[str], Collection[str], Collection[str]]] = {
    "retrieval": (("task", "method"), ("multiple", "cases"), _ACCURACY),
    "by_distance": (("task", "method"), ("begin", "end", "cases"), _ACCURACY),
    "by_depth": (("task", "method"), ("multiple", "begin", "end", "cases"), _ACCURACY),
    "perplexity": (("method",), ("begin", "end", "nats", "difference"), ("half_width",)),
}

#: Keys that entries may have besides, numbers or None, and those of half-widths.
_PERHAPS = ("gain", "gain_half_width")
_HALF_WIDTHS = ("half_width", "gain_half_width")

_KEYS = ("train_length", "methods", *_ENTRIES, "commands")


def read_summary(path: str | os.PathLike[str]) -> Summary:
    """Read a summary that `ntk-alibi eval --json` printed.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no summary.
    """
    value = _files.read_json(path)
    with _files.readable("a summary that `ntk-alibi eval --json` printed", path):
        return _stored(value)


def _stored(value: Any) -> Summary:
    if not isinstance(value, Mapping):
        raise ValueError(f"it must be an object, got {str(value)[:40]}")
    for key, command in (("rows", "eval --tasks"), ("trace", "tune")):
        if key in value:
            raise ValueError(
                f"it must be a study's, got the output of `ntk-alibi {command} --json`, which "
                "--from-json does not show"
            )
    _required_keys("it", value, _KEYS)
    _checks.integer("train_length", value["train_length"], minimum=1)
    methods = value["methods"]
    if not isinstance(methods, list) or not methods or not _are_texts(methods):
        raise ValueError(f"methods must be a list of names, got {methods!r}")
    if not value["retrieval"] and not value["perplexity"]:
        raise ValueError("retrieval or perplexity must hold results, got none")
    summary = Summary(value)
    cells = summary["commands"]
    if not isinstance(cells, Mapping) or not all(isinstance(c, Mapping) for c in cells.values()):
        raise ValueError(f"commands must be an object of objects, got {str(cells)[:40]}")
    for key in _ENTRIES:
        if not isinstance(summary[key], list):
            raise ValueError(f"{key} must be a list, got {str(summary[key])[:40]}")
        for entry in summary[key]:
            _check_entry(key, entry, methods)
            # JSON lacks NaN, the half-width of a single record or window.
            entry |= {w: math.nan for w in _HALF_WIDTHS if entry.get(w, 0) is None}
    return summary


def _required_keys(name: str, value: Any, required: Collection[str]) -> None:
    """Check that a mapping has all required keys; others may be there."""
    if isinstance(value, Mapping):
        value = {key: value[key] for key in required if key in value}
    _checks.keys(name, value, required=required)


def _check_entry(name: str, entry: Any, methods: Collection[str]) -> None:
    """Check an entry of one of the lists of a summary."""
    texts, numbers, perhaps = _ENTRIES[name]
    _required_keys(f"an entry of {name}", entry, [*texts, *numbers, *perhaps])
    values = [entry[key] for key in numbers]
    values += [v for k in (*perhaps, *_PERHAPS) if (v := entry.get(k)) is not None]
    if (
        entry["method"] not in methods
        or not _are_texts(entry[key] for key in texts)
        or not all(isinstance(number, int | float) for number in values)
    ):
        raise ValueError(f"an entry of {name} must have numbers of a known method, got {entry!r}")
    for key in _ACCURACY:
        if (number := entry.get(key)) is not None and not 0 <= number <= 1:
            raise ValueError(f"{key} of {name} must be between 0 and 1, got {number!r}")


def _are_texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)
