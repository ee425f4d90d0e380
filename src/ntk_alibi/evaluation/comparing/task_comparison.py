"""Comparison of methods on any tasks of the harness: a figure and its interval for each pair.

Tables show published figures of stretched models beside measured ones. They are from
keezen/ntk_alibi 2023, for bloom-1b7, which states neither truncation nor other settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi.evaluation.comparing.intervals import (
    NORMAL,
    accuracy_interval,
    ratio_standard_error,
)
from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.methods import Method

if TYPE_CHECKING:
    from ntk_alibi.evaluation.harness.model import StretchedLM

#: Metrics of tables; a task shows the first one that it has.
MAIN_METRICS = ("accuracy", "score", "acc_norm", "acc", "exact_match", "f1", "nats")


def compare(
    lm: StretchedLM,
    methods: Sequence[Method],
    tasks: Any,
    *,
    metadata: dict[str, Any],
    model: str,
    cache: Path,
) -> dict[str, Any]:
    """Run the tasks with each method.

    Args:
        lm: the model.
        methods: the methods to compare.
        tasks: what `load_harness_tasks` returns.
        metadata: metadata of the tasks besides the model, for the commands.
        model: name of the model, for the commands and for published figures.
        cache: folder for all answers, which stays.

    Returns:
        A dictionary with these keys:
        model: the name of the model;
        rows: a pandas frame with a row for each task (see `split_by_length`) and method: task,
            method, metric, cases, value, the ends of its 95 % interval (low, high), the published
            percentage (or None), and the command that repeats the row;
        settings: for each method, the settings of the model as the harness stores them.
    """
    import pandas as pd

    samples, settings = harness.answers(lm, methods, tasks, cache)
    rows = [
        {
            "task": name,
            "method": method,
            **summarise_samples(part),
            "published": published_percent(model, task, method),
            "command": command(lm, model, method, task, metadata),
        }
        for method, of_method in samples.items()
        for task, of_task in of_method.items()
        for name, part in split_by_length(task, of_task).items()
    ]
    return {"model": model, "rows": pd.DataFrame(rows), "settings": settings}


def load_harness_tasks(tasks: Sequence[str], metadata: dict[str, Any], model: str) -> Any:
    """Load tasks by name.

    The harness takes seconds to search its tasks, and does so only for a name that is not ours.
    """
    harness.check_metadata(tasks, metadata)
    metadata = harness.with_tokenizer(model, {"pretrained": model, **metadata})
    with harness.quiet():
        return harness.load_tasks(
            tasks, metadata, with_theirs=not set(tasks).issubset(harness.task_names())
        )


def split_by_length(
    task: str, samples: Sequence[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Split the samples of a task of RULER by length; other tasks stay whole.

    The metrics of RULER have lengths as their names. A sample has its score at its length, and -1
    at the others.
    """
    if not all(metric.isdecimal() for metric in samples[0]["metrics"]):
        return {task: list(samples)}
    parts: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        (length,) = [metric for metric in sample["metrics"] if sample[metric] != -1]
        part = parts.setdefault(f"{task}, {length} tokens", [])
        part.append({"score": sample[length], "metrics": ["score"]})
    return parts


def summarise_samples(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return metric, number of cases, value and 95 % interval of the samples of a task."""
    metric = next((m for m in MAIN_METRICS if m in samples[0]), samples[0]["metrics"][0])
    values = [sample[metric] for sample in samples]
    if isinstance(values[0], list | tuple):  # a sum and its divisor
        tops, counts = zip(*values, strict=True)
    else:
        tops, counts = tuple(map(float, values)), (1,) * len(values)
    cases, value = int(sum(counts)), sum(tops) / sum(counts)
    if set(tops) <= {0.0, 1.0} or metric == "accuracy":
        low, high = accuracy_interval([int(t) for t in tops], counts)
    else:
        half = NORMAL * ratio_standard_error(tops, counts) if len(tops) > 1 else math.nan
        low, high = value - half, value + half
    return {"metric": metric, "cases": cases, "value": value, "low": low, "high": high}


def command(lm: StretchedLM, model: str, method: str, task: str, metadata: dict[str, Any]) -> str:
    """Return the command line that computes one row of the comparison again."""
    others: dict[str, Any] = {"dtype": str(lm.model.dtype).removeprefix("torch.")}
    if lm.limit is not None:
        others |= {"max_length": lm.limit, "truncation": lm.truncation_rule}
    metadata = harness.task_metadata(task, metadata)
    return harness.command_line(model, method, lm.train_length, task, metadata, **others)


#: Published percentages of one model, by the harness's task without "_local" and by the method:
#: accuracies; for MultiFieldQA-en, F1 scores over words.
PUBLISHED_MODEL = "bloom-1b7"
PUBLISHED: dict[str, dict[str, float]] = {
    "longeval_topics_5": {"original": 2, "interpolation:2": 74, "ntk:2": 96},
    "longeval_lines_200": {"original": 0, "interpolation:2": 30, "ntk:2": 40},
    "longbench_trec": {"original": 13.0, "ntk:4": 61.5},
    "longbench_multifieldqa_en": {"original": 8.8, "ntk:4": 23.0, "dynamic-ntk:2": 26.3},
}


def published_percent(model: str, task: str, method: str) -> float | None:
    """Return the published figure for a model, task and method, or None."""
    if model.rstrip("/").rpartition("/")[2] != PUBLISHED_MODEL:
        return None
    return PUBLISHED.get(task.removesuffix("_local"), {}).get(method)
