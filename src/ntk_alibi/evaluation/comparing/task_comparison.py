"""Comparison of methods on any harness tasks: one figure with its interval for each pair.

Tables print published figures of stretched models beside measured ones. Their source is
keezen/ntk_alibi 2023, with bloom-1b7; it states neither truncation nor other settings.
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
from ntk_alibi.methods import Method, to_model_arguments

if TYPE_CHECKING:
    from ntk_alibi.evaluation.harness.model import StretchedLM

#: Metrics shown in tables; of these, a task shows the first that it has.
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
        tasks: the tasks, as returned by `load_known`.
        metadata: metadata of the tasks besides the model; it appears in the commands.
        model: name of the model, for the commands and for published figures.
        cache: folder for all single answers; it is kept when the comparison is done.

    Returns:
        A dictionary with these keys:
        model: the name of the model;
        rows: a pandas frame, for each task (see `by_length`) and method: task, method, metric,
            cases, value, its 95 % interval (low, high), the published percentage for the same
            model, task and method (or None), and the command that reproduces the row;
        settings: for each method, the model's settings as the harness records them.
    """
    import pandas as pd

    samples, settings = harness.answers(lm, methods, tasks, cache)
    rows = [
        {
            **{"task": name, "method": method},
            **summary_of(part),
            "published": published_percent(model, task, method),
            "command": command(lm, model, method, task, metadata),
        }
        for method, of_method in samples.items()
        for task, of_task in of_method.items()
        for name, part in by_length(task, of_task).items()
    ]
    return {"model": model, "rows": pd.DataFrame(rows), "settings": settings}


def load_known(tasks: Sequence[str], metadata: dict[str, Any], model: str) -> Any:
    """Load tasks by name.

    The harness takes seconds to search its own tasks, so it does so only for a name that is not
    ours.
    """
    harness.check_metadata(tasks, metadata)
    metadata = harness.with_tokenizer_of(model, {"pretrained": model, **metadata})
    with harness.quiet():
        return harness.load_tasks(
            tasks, metadata, all_known=not set(tasks).issubset(harness.task_names())
        )


def by_length(task: str, samples: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Divide the samples of a task of RULER by length; return those of another task as they are.

    RULER's metrics are called by lengths. A sample has its score at its own length; at another one
    it has -1, which is no score.
    """
    if not all(metric.isdecimal() for metric in samples[0]["metrics"]):
        return {task: list(samples)}
    parts: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        (length,) = [metric for metric in sample["metrics"] if sample[metric] != -1]
        part = parts.setdefault(f"{task}, {length} tokens", [])
        part.append({"score": sample[length], "metrics": ["score"]})
    return parts


def summary_of(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return metric, number of cases, value and 95 % interval of a task's samples."""
    metric = next((m for m in MAIN_METRICS if m in samples[0]), samples[0]["metrics"][0])
    values = [sample[metric] for sample in samples]
    if isinstance(values[0], list | tuple):  # a sum and its divisor
        tops, counts = [v[0] for v in values], [v[1] for v in values]
        value, cases = sum(tops) / sum(counts), int(sum(counts))
    else:
        tops, counts = [float(v) for v in values], [1] * len(values)
        value, cases = sum(tops) / len(tops), len(tops)
    if set(tops) <= {0.0, 1.0} or metric == "accuracy":
        low, high = accuracy_interval([int(t) for t in tops], counts)
    else:
        low, high = _mean_interval(tops, counts)
    return {"metric": metric, "cases": cases, "value": value, "low": low, "high": high}


def _mean_interval(tops: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """Return the normal 95 % interval of a ratio of sums over samples."""
    n, value = len(tops), sum(tops) / sum(counts)
    if n < 2:
        return math.nan, math.nan
    half = NORMAL * ratio_standard_error(tops, counts)
    return value - half, value + half


def command(lm: StretchedLM, model: str, method: str, task: str, metadata: dict[str, Any]) -> str:
    """Return the command that reproduces one row."""
    options = f"pretrained={model},{to_model_arguments(method)},train_length={lm.train_length}"
    options += f",dtype={str(lm.model.dtype).removeprefix('torch.')}"
    if lm.limit is not None:
        options += f",max_length={lm.limit},truncation={lm.truncation_rule}"
    return harness.command_line(options, task, harness.metadata_of(task, metadata))


#: Published percentages of one model, by the name of the harness task without "_local" and by the
#: method: accuracies, for MultiFieldQA-en the F1 score over words.
PUBLISHED_MODEL = "bloom-1b7"
PUBLISHED: dict[str, dict[str, float]] = {
    "longeval_topics_5": {"original": 2, "interpolation:2": 74, "ntk:2": 96},
    "longeval_lines_200": {"original": 0, "interpolation:2": 30, "ntk:2": 40},
    "longbench_trec": {"original": 13.0, "ntk:4": 61.5},
    "longbench_multifieldqa_en": {"original": 8.8, "ntk:4": 23.0, "dynamic-ntk:2": 26.3},
}


def published_percent(model: str, task: str, method: str) -> float | None:
    """Return the published figure for a model, task and method, or None if there is none."""
    if model.rstrip("/").rpartition("/")[2] != PUBLISHED_MODEL:
        return None
    return PUBLISHED.get(task.removesuffix("_local"), {}).get(method)
