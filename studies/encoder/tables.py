"""Results of the study over its trainings: a summary, Markdown tables and a figure.

Intervals are Student's over trainings. Each training read other texts, so the intervals cover
trainings and texts. Intervals for a single training are Student's over its texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ntk_alibi import _files
from ntk_alibi.evaluation.comparing.intervals import paired_difference
from ntk_alibi.evaluation.report.cells import with_half_width
from ntk_alibi.evaluation.report.markdown import describe_machine, table
from studies.encoder import texts
from studies.encoder.reading import RULES
from studies.means import curves, paired_p, points, share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Summary: TypeAlias = dict[str, Any]

#: Seeds of the study.
SEEDS = range(3)

#: Sections of the document.
SECTIONS = ("machine", "trainings", "endpoint", "numbers", "names", "distances")

#: The rule with which all rules are compared; the rule and the multiple of the primary endpoint,
#: which is the share found of the numbers whose answer is farther away than the training length.
BASELINE, ENDPOINT_RULE, ENDPOINT_AT = "original", "dynamic-flat", 4

#: Limits of the ranges of numbers' distances, in training lengths; names are nearer.
DISTANCES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)

#: Ranges of counts in a summary: names, all numbers, and numbers beyond the training length.
NAMES, NUMBERS = slice(0, 1), slice(1, None)
BEYOND = slice(1 + DISTANCES.index(1.0), None)


def summarise(output: Path) -> Summary:
    """Collect the results of all trainings.

    Args:
        output: folder of the study.

    Returns:
        A dictionary with these keys:
        machine: the description of the machine;
        train_length: the training length in tokens;
        models: for each training, its seed, its curriculum (training) and, by rule and multiple,
            counts: for each text, the tokens found and asked of the names and of the numbers in
            each range of `DISTANCES`.

    Raises:
        ValueError: no training has results.
    """
    models = []
    for path in sorted(output.glob("seed-*/results.json")):
        with _files.readable("results of the study", path):
            results = _files.read_json(path)
            counts: dict[str, dict[str, Any]] = {}
            for key, found in results["found"].items():
                rule, _, multiple = key.rpartition("/")
                counts.setdefault(rule, {})[multiple] = _counts(
                    found, results["recipe"]["train_length"]
                )
            models.append(
                {
                    "seed": results["recipe"]["seed"],
                    "train_length": results["recipe"]["train_length"],
                    "training": results["training"],
                    "counts": counts,
                }
            )
    if not models:
        raise ValueError(f"{output} must hold results of trainings, got none")
    return {
        "machine": describe_machine(),
        "train_length": models[0]["train_length"],
        "models": models,
    }


def _counts(found: dict[str, Any], train_length: int) -> list[list[list[int]]]:
    """Return for each text the tokens found and asked of the names and of each range."""
    edges = [0.0, texts.LINE_TOKENS, *(train_length * end for end in DISTANCES[1:])]
    return [
        np.stack(
            [
                np.histogram(np.array(distances)[np.array(right)], edges)[0],
                np.histogram(distances, edges)[0],
            ],
            axis=1,
        ).tolist()
        for right, distances in zip(found["right"], found["distances"], strict=True)
    ]


def shares(summary: Summary, rule: str, multiple: int, ranges: slice) -> list[float]:
    """Return each training's share of tokens found in some ranges.

    Trainings without texts of this multiple, or without tokens in these ranges, are left out.
    """
    made = []
    for model in summary["models"]:
        counts = np.array(model["counts"].get(rule, {}).get(str(multiple), np.zeros((0, 1, 2))))
        found, asked = counts[:, ranges].sum(axis=(0, 1))
        if asked:
            made.append(float(found / asked))
    return made


def tables(summary: Summary) -> dict[str, str]:
    """Format the Markdown table of each section of the document, by the section's name.

    Args:
        summary: from `summarise`.
    """
    return {
        "machine": summary["machine"],
        "trainings": _trainings(summary),
        "endpoint": endpoint(summary),
        "numbers": _over_multiples(summary, "numbers found, %", NUMBERS),
        "names": _over_multiples(summary, "names found, %", NAMES),
        "distances": _by_distance(summary),
    }


def _multiples(summary: Summary) -> list[int]:
    return sorted({int(x) for m in summary["models"] for x in m["counts"][BASELINE]})


def _trainings(summary: Summary) -> str:
    rows = []
    for model in summary["models"]:
        state = model["training"]
        counts = np.array(model["counts"][BASELINE]["1"])[:, NUMBERS].sum(axis=(0, 1))
        rows.append(
            [
                str(model["seed"]),
                str(state["step"]),
                str(state["learned_at"] or "never"),
                f"{100 * counts[0] / counts[1]:.1f}",
                f"{state['cpu_seconds'] / 60:.1f}",
            ]
        )
    header = ["seed", "steps", "95 % after", "numbers found at 1x, %", "processor minutes"]
    return table(header, rows)


def endpoint(summary: Summary) -> str:
    """Format the far numbers found at the endpoint's multiple, and the gains of all rules."""
    rows = []
    base = shares(summary, BASELINE, ENDPOINT_AT, BEYOND)
    for rule in RULES:
        far = shares(summary, rule, ENDPOINT_AT, BEYOND)
        gains = [first - second for first, second in zip(far, base, strict=True)]
        each = ", ".join(_paired(model["counts"], rule) for model in summary["models"])
        compared = ["", "", ""] if rule == BASELINE else [points(gains), paired_p(gains), each]
        rows.append([RULES[rule].shown([ENDPOINT_AT]), share(far), *compared])
    header = [f"far numbers at {ENDPOINT_AT}x", "found, %", "gain", "p (paired t)"]
    return table([*header, "each training, over its texts"], rows)


def _paired(counts: dict[str, Any], rule: str) -> str:
    first, second = (
        np.array(counts[name][str(ENDPOINT_AT)])[:, BEYOND].sum(axis=1) for name in (rule, BASELINE)
    )
    gain, width = paired_difference(first[:, 0], second[:, 0], first[:, 1])
    return with_half_width(100 * gain, 100 * width, 0)


def _over_multiples(summary: Summary, title: str, ranges: slice) -> str:
    multiples = _multiples(summary)
    rows = [
        [
            RULES[rule].shown(multiples),
            *(share(shares(summary, rule, multiple, ranges)) for multiple in multiples),
        ]
        for rule in RULES
    ]
    return table([title, *(f"{x}x" for x in multiples)], rows)


def _by_distance(summary: Summary) -> str:
    """Format the numbers found in the longest texts by their distance in training lengths."""
    multiple = max(_multiples(summary))
    pairs = [(i, begin) for i, begin in enumerate(DISTANCES) if begin < multiple]
    rows = [
        [
            RULES[rule].shown([multiple]),
            *(share(shares(summary, rule, multiple, slice(i + 1, i + 2))) for i, _ in pairs),
        ]
        for rule in RULES
    ]
    header = [f"{begin:g} to {DISTANCES[i + 1]:g}" for i, begin in pairs]
    return table([f"numbers found at {multiple}x, %", *header], rows)


def figure(summary: Summary) -> Figure:
    """Draw the numbers found over the length of the texts.

    Args:
        summary: from `summarise`.
    """
    from matplotlib.figure import Figure

    multiples = _multiples(summary)
    cells: dict[str, list[Sequence[float]]] = {
        RULES[rule].shown(multiples): [
            shares(summary, rule, multiple, NUMBERS) for multiple in multiples
        ]
        for rule in RULES
    }
    made = Figure(figsize=(8, 4.6), layout="constrained")
    axes = curves(cells, multiples, summary["train_length"], "numbers found, %", ax=made.subplots())
    axes.set_ylim(0.0, 103.0)
    axes.set_title(f"encoders: masked numbers found, mean of {len(summary['models'])} trainings")
    return made
