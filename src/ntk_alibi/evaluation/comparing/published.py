"""Published figures of stretched models; tables print them beside measured figures.

Source: keezen/ntk_alibi 2023, with bloom-1b7. The source states neither truncation nor other
settings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedResult:
    """One published figure.

    Attributes:
        model: last component of the model's name.
        task: name of the harness task, without "_local".
        method: method name for `parse_method`.
        percent: accuracy; for MultiFieldQA-en the F1 score over words.
    """

    model: str
    task: str
    method: str
    percent: float


_MODEL = "bloom-1b7"

_FIGURES: dict[str, dict[str, float]] = {
    "longeval_topics_5": {"original": 2, "interpolation:2": 74, "ntk:2": 96},
    "longeval_lines_200": {"original": 0, "interpolation:2": 30, "ntk:2": 40},
    "longbench_trec": {"original": 13.0, "ntk:4": 61.5},
    "longbench_multifieldqa_en": {"original": 8.8, "ntk:4": 23.0, "dynamic-ntk:2": 26.3},
}

RESULTS = tuple(
    PublishedResult(_MODEL, task, method, percent)
    for task, figures in _FIGURES.items()
    for method, percent in figures.items()
)


def published_percent(model: str, task: str, method: str) -> float | None:
    """Return the published figure for a model, task and method, or None if there is none."""
    name = model.rstrip("/").rpartition("/")[2]
    for result in RESULTS:
        if (result.model, result.task, result.method) == (
            name,
            task.removesuffix("_local"),
            method,
        ):
            return result.percent
    return None
