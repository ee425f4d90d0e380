"""Results of the study over all models: plain numbers, Markdown tables and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ntk_alibi import _files, plots
from ntk_alibi.evaluation.report.markdown import table
from ntk_alibi.extrapolation.measure import READING_MODES, MeasurePlan, views
from ntk_alibi.extrapolation.schemes import SCHEMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Names of the schemes in tables.
LABELS = {
    "none": "none",
    "alibi": "ALiBi",
    "learned-slopes": "ALiBi, learned slopes",
    "kerple-power": "KERPLE power",
    "kerple-log": "KERPLE log",
    "sandwich": "Sandwich",
    "xpos": "XPOS",
    "rope": "RoPE",
    "bam": "BAM",
    "fox": "FoX",
}

#: Reading modes that their papers count as part of the method; the method tables include them.
PARTS_OF_METHODS = ("rope/window", "xpos/blocks")

#: Curves of each panel of the figure, by the panel's title.
PANELS = {
    "none, ALiBi and BAM": (
        "none/plain",
        "alibi/plain",
        "alibi/ntk",
        "learned-slopes/plain",
        "bam/plain",
    ),
    "other biases": ("kerple-power/plain", "kerple-log/plain", "sandwich/plain", "fox/plain"),
    "rotations": ("rope/plain", "rope/window", "rope/ntk", "xpos/plain", "xpos/blocks"),
}


def summarise(output: Path) -> dict[str, Any]:
    """Collect the results of all finished models.

    Args:
        output: folder of the study.

    Returns:
        A dictionary with these keys:
        recipe and plan: the settings of all models;
        training: for each scheme, lists over the seeds: seeds, cpu_seconds and wall_seconds;
        measured: for each "scheme/reading" and multiple of the training length, lists over the
            seeds: pairs, the share of questions with a right answer; beyond, the same share over
            the questions whose answer is farther back than the training length (None if there are
            none); nats, the nats per token of prose; change, the difference of nats from the same
            model's, read as trained with a context of one training length.

    Raises:
        ValueError: no model is finished, or the models have different recipes or plans.
    """
    made_by: dict[str, Any] = {}
    training: dict[str, dict[str, list[float]]] = {}
    measured: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for scheme in LABELS:
        for path in sorted(output.glob(f"{scheme}-[0-9]*/results.json")):
            results = _files.read_json(path)
            with _files.readable("results of the study", path):
                seed = results["recipe"].pop("seed")
                del results["recipe"]["scheme"]
                settings = {name: results[name] for name in ("recipe", "plan")}
            if made_by and settings != made_by:
                raise ValueError(f"{path} was made by another recipe or plan than the others")
            made_by = settings
            length = settings["recipe"]["train_length"]
            expected = views(SCHEMES[scheme], MeasurePlan(**settings["plan"]), length)
            if expected.keys() - results["measured"]:
                continue  # not finished
            _append(training.setdefault(scheme, {}), {"seeds": seed, **_taken(results["training"])})
            for key, result in results["measured"].items():
                reading, multiple = key.split("/")
                cells = measured.setdefault(f"{scheme}/{reading}", {})
                first = results["measured"]["plain/1"]
                numbers = _numbers(result, first, length)
                _append(cells.setdefault(multiple, {}), numbers)
    if not measured:
        raise ValueError(f"{output} must hold models that are finished, has none")
    return {**made_by, "training": training, "measured": measured}


def _append(lists: dict[str, list[Any]], values: dict[str, Any]) -> None:
    for name, value in values.items():
        lists.setdefault(name, []).append(value)


def _taken(training: dict[str, Any]) -> dict[str, float]:
    return {name: round(training[name], 1) for name in ("cpu_seconds", "wall_seconds")}


def _numbers(
    result: dict[str, Any], first: dict[str, Any], train_length: int
) -> dict[str, float | None]:
    right = np.array(result["right"])
    far = right[np.array(result["distances"]) > train_length]
    nats, before = (float(np.mean(x["nats"])) for x in (result, first))
    return {
        "pairs": round(float(right.mean()), 4),
        "beyond": round(float(far.mean()), 4) if far.size else None,
        "nats": round(nats, 4),
        "change": round(nats - before, 4),
    }


def tables(summary: dict[str, Any]) -> dict[str, str]:
    """Format the Markdown table of each section of the document, by the section's name.

    Args:
        summary: the dictionary that `summarise` returns.
    """
    methods = [name for name in _names(summary) if _is_method(name)]
    others = [name for name in _names(summary) if not _is_method(name)]
    multiples = summary["plan"]["multiples"]
    longer = multiples[1:]
    return {
        "pairs": _table(
            summary, methods, [("pairs", m, _percent) for m in multiples], seeds_at=multiples[-1]
        ),
        "beyond": _table(summary, methods, [("beyond", m, _percent) for m in longer]),
        "prose": _table(
            summary, methods, [("nats", 1, _plain), *(("change", m, _signed) for m in longer)]
        ),
        "readings": _table(
            summary,
            others,
            [*(("pairs", m, _percent) for m in longer), *(("change", m, _signed) for m in longer)],
        ),
        "training": _training(summary),
    }


def _names(summary: dict[str, Any]) -> list[str]:
    """Return the measured pairs "scheme/reading" in the order of the tables."""
    names = (f"{scheme}/{reading.name}" for scheme in LABELS for reading in READING_MODES)
    return [name for name in names if name in summary["measured"]]


def _is_method(name: str) -> bool:
    return name.endswith("/plain") or name in PARTS_OF_METHODS


def label(name: str) -> str:
    """Return the label of a "scheme/reading" in tables and figures."""
    scheme, _, reading = name.partition("/")
    if reading == READING_MODES[0].name:
        return LABELS[scheme]
    return f"{LABELS[scheme]} + {next(x.label for x in READING_MODES if x.name == reading)}"


def over_seeds(summary: dict[str, Any], name: str, quantity: str, multiple: int) -> list[float]:
    """Return the numbers of one cell, without None; an empty list if it was not measured.

    Args:
        summary: the dictionary that `summarise` returns.
        name: the pair "scheme/reading".
        quantity: "pairs", "beyond", "nats" or "change".
        multiple: multiple of the training length.
    """
    values = summary["measured"][name].get(str(multiple), {}).get(quantity, [])
    return [value for value in values if value is not None]


def _table(
    summary: dict[str, Any],
    names: Sequence[str],
    columns: Sequence[tuple[str, int, Callable[[float], str]]],
    seeds_at: int | None = None,
) -> str:
    """Format a row for each name; seeds_at adds a column of each seed's pairs at a multiple."""
    words = {"pairs": "pairs, %", "beyond": "beyond, %", "nats": "nats", "change": "nats"}
    header = [f"{words[quantity]}, {multiple}x" for quantity, multiple, _ in columns]
    rows = [
        [
            label(name),
            str(len(summary["training"][name.partition("/")[0]]["seeds"])),
            *(
                _cell(over_seeds(summary, name, quantity, multiple), written)
                for quantity, multiple, written in columns
            ),
            *([] if seeds_at is None else [_each(over_seeds(summary, name, "pairs", seeds_at))]),
        ]
        for name in names
    ]
    header += [] if seeds_at is None else [f"each seed, {seeds_at}x"]
    return table(["", "seeds", *header], rows)


def _cell(values: Sequence[float], written: Callable[[float], str]) -> str:
    """Format the mean and, for several seeds, the standard deviation."""
    if not values:
        return ""
    if len(values) == 1:
        return written(values[0])
    spread = written(float(np.std(values, ddof=1))).lstrip("+")
    return f"{written(float(np.mean(values)))} ± {spread}"


def _each(shares: Sequence[float]) -> str:
    return " / ".join(map(_percent, shares))


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _plain(nats: float) -> str:
    return f"{nats:.2f}"


def _signed(nats: float) -> str:
    return f"{nats:+.3f}".replace("-0.000", "+0.000")


def _training(summary: dict[str, Any]) -> str:
    rows = []
    for scheme, taken in summary["training"].items():
        seconds = ("cpu_seconds", "wall_seconds")
        rows.append(
            [
                LABELS[scheme],
                str(len(taken["seeds"])),
                *(f"{np.mean(taken[x]):.0f}" for x in seconds),
            ]
        )
    return table(["", "seeds", "CPU seconds a training", "wall seconds"], rows)


def figure(summary: dict[str, Any]) -> Figure:
    """Plot accuracy and change of nats over length, with standard deviations over the seeds.

    Args:
        summary: the dictionary that `summarise` returns.
    """
    from matplotlib.figure import Figure

    train_length, multiples = summary["recipe"]["train_length"], summary["plan"]["multiples"]
    made = Figure(figsize=(13, 8), layout="constrained")
    axes = made.subplots(2, len(PANELS), sharey="row")
    rows: tuple[tuple[str, str, float, Any], ...] = (
        ("pairs", "numbers found, %", 100.0, (0.0, 100.0)),
        ("change", "nats, change from 1x", 1.0, None),
    )
    for row, (quantity, words, unit, limits) in enumerate(rows):
        for column, (title, panel) in enumerate(PANELS.items()):
            axes[row, column].set_title(title)
            names = [name for name in panel if name in summary["measured"]]
            means, spreads = _curves(summary, names, quantity, multiples, unit)
            plots.extrapolation_curves(
                [multiple * train_length for multiple in multiples],
                means,
                half_widths=spreads,
                train_length=train_length,
                quantity=words,
                limits=limits,
                ax=axes[row, column],
            )
    return made


def _curves(
    summary: dict[str, Any],
    names: Iterable[str],
    quantity: str,
    multiples: Sequence[int],
    unit: float,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return means and standard deviations of each method at all multiples; NaN if unmeasured.

    At multiples where a reading mode changes nothing, the figures of the plain mode are used.
    """
    means: dict[str, list[float]] = {}
    spreads: dict[str, list[float]] = {}
    for name in names:
        plain = f"{name.partition('/')[0]}/plain"
        cells = [
            over_seeds(summary, name, quantity, multiple)
            or over_seeds(summary, plain, quantity, multiple)
            for multiple in multiples
        ]
        means[label(name)] = [unit * float(np.mean(x)) if x else np.nan for x in cells]
        spreads[label(name)] = [unit * float(np.std(x, ddof=1)) if x[1:] else 0.0 for x in cells]
    return means, spreads
