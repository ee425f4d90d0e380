"""Figures of a length study: accuracy and perplexity over length, distance, depth and position."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ntk_alibi import _checks
from ntk_alibi.plots.style import (
    band,
    color_bar,
    drawing,
    drawing_figure,
    finish,
    heat,
    legend,
    line_styles,
    mark_training_length,
    shared_legend,
    theme_of,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series

    from ntk_alibi.evaluation.comparing.summary import Summary

#: Greatest number of letters in a line of the title of a map.
TITLE_LETTERS = 27


def _check(summary: Any) -> None:
    if not hasattr(summary, "retrieval"):
        raise TypeError(
            "summary must be a Summary, as ntk_alibi.evaluation.evaluate and read_summary return "
            f"it, got {_checks.briefly(summary)}"
        )


def study_figure(summary: Summary) -> Figure:
    """Draw a whole study: accuracy by length and by distance, perplexity by position.

    Args:
        summary: from `ntk_alibi.evaluation.evaluate` or `read_summary`.

    Returns:
        The figure, which pyplot does not manage; `.savefig(path)` writes it.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import ntk_alibi as na
        >>> from ntk_alibi.evaluation import Summary
        >>> nats = {"method": "original", "begin": 0.0, "end": 1.0, "nats": 2.7,
        ...         "difference": 0.0, "half_width": 0.01}
        >>> summary = Summary(2048, ["original"], perplexity=[nats])
        >>> len(na.plots.study_figure(summary).axes)
        1
    """
    _check(summary)
    retrieval, nats = summary.retrieval, summary.perplexity
    with drawing_figure() as new_figure:
        tasks = list(retrieval["task"].unique())
        prose = not nats.empty
        figure = new_figure(figsize=(11, 3.3 * (len(tasks) + prose) + 0.6), layout="constrained")
        grid = figure.add_gridspec(len(tasks) + prose, 2)
        for row, task in enumerate(tasks):
            accuracy_curves(summary, task, ax=figure.add_subplot(grid[row, 0]))
            accuracy_curves(summary, task, by="distance", ax=figure.add_subplot(grid[row, 1]))
        if prose:
            perplexity_curves(summary, ax=figure.add_subplot(grid[len(tasks), :]))
        shared_legend(figure, ncols=4)
    return figure


def accuracy_curves(
    summary: Summary,
    task: str,
    *,
    by: Literal["length", "distance"] = "length",
    ax: Axes | None = None,
) -> Axes:
    """Draw the accuracy of all methods of a study by record length or by answer distance.

    Args:
        summary: from `ntk_alibi.evaluation.evaluate` or `read_summary`.
        task: a task of the summary, "lines" or "topics".
        by: "length" of the record, with 95 % intervals, or "distance" from the question back to the
            answer, for records of all lengths together.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with a line for each method, accuracy in % over training lengths.

    Raises:
        ValueError: task or by is unknown.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> from ntk_alibi.evaluation import Summary
        >>> cells = [
        ...     {"task": "lines", "method": "original", "multiple": m, "cases": 64,
        ...      "accuracy": a, "low": a - 0.1, "high": min(a + 0.1, 1.0)}
        ...     for m, a in ((1.0, 0.9), (2.0, 0.5))
        ... ]
        >>> summary = Summary(2048, ["original"], retrieval=cells)
        >>> ax = na.plots.accuracy_curves(summary, "lines")
        >>> ax.get_lines()[0].get_ydata().tolist()
        [90.0, 50.0]
        >>> plt.close(ax.figure)
    """
    _checks.choice("by", by, ("length", "distance"))
    _check(summary)
    shown = summary.retrieval if by == "length" else summary.by_distance
    _checks.choice("task", task, sorted(summary.retrieval["task"].unique()))
    cells = shown[shown["task"] == task]
    with drawing(ax) as axes:
        for method, look in _methods(axes, summary):
            found = cells[cells["method"] == method].dropna(subset="accuracy")
            percent = 100 * found["accuracy"]
            places = found["multiple"] if by == "length" else _middle(found)
            bars = [percent - 100 * found["low"], 100 * found["high"] - percent]
            errors = np.abs(bars) if by == "length" else None
            axes.errorbar(places, percent, yerr=errors, label=method, capsize=2, **look)
        axes.set_ylim(0, 103)
        if by == "length":
            measured = sorted(cells["multiple"].unique())
            axes.set_xticks(measured, [f"{multiple:g}" for multiple in measured])
            xlabel = f"record length / training length ({summary.train_length} tokens)"
            finish(axes, f"{task}: longer records", xlabel, "accuracy, %")
        else:
            mark_training_length(axes, 1)
            axes.set_xlim(0, shown["end"].max())
            xlabel = "distance from question to answer / training length"
            finish(axes, f"{task}: distant answers, records of all lengths", xlabel, "accuracy, %")
        legend(axes, ncols=4)
    return axes


def perplexity_curves(summary: Summary, *, ax: Axes | None = None) -> Axes:
    """Draw by position how much each method of a study changes the log perplexity of prose."""
    nats = summary.perplexity
    with drawing(ax) as axes:
        for method, look in _methods(axes, summary):
            cells = nats[nats["method"] == method]
            middles, difference = _middle(cells), cells["difference"]
            axes.plot(middles, difference, label=method, **look)
            band(axes, middles, difference, cells["half_width"], look["color"])
        mark_training_length(axes, 1)
        first = next(iter(summary.methods))
        title = f"prose: log perplexity, difference from {first} (band: 95 %, paired)"
        finish(axes, title, "position / training length", "nats per token")
        legend(axes, ncols=4)
    return axes


def depth_figure(summary: Summary) -> Figure:
    """Draw the accuracy of each method of a study over record length and depth of the answer.

    The figure, which pyplot does not manage, has one map for each task and method. Cells without
    records are grey.
    """
    cells = summary.by_depth
    with drawing_figure() as new_figure:
        from matplotlib.patches import Patch

        tasks, methods = list(cells["task"].unique()), summary.methods
        size = (1.9 * len(methods) + 1.2, 2.3 * len(tasks) + 0.6)
        figure = new_figure(figsize=size, layout="constrained")
        empty = False
        grid = figure.subplots(len(tasks), len(methods), squeeze=False, sharex=True, sharey=True)
        for axes, (task, method) in zip(grid.flat, product(tasks, methods), strict=True):
            found = cells[(cells["task"] == task) & (cells["method"] == method)]
            percent = 100 * found.pivot(index="begin", columns="multiple", values="accuracy")
            depths, lengths = percent.axes
            image = heat(axes, percent, None, vmin=0, vmax=100)
            axes.set_title(wrapped(f"{task}, {method}", TITLE_LETTERS), fontsize=8)
            axes.set_xticks(range(len(lengths)), [f"{length:g}x" for length in lengths])
            axes.set_yticks([-0.5, len(depths) - 0.5], ["begin", "end"])
            empty |= bool(percent.isna().any(axis=None))
        color_bar(image, list(grid.flat), "accuracy, %")
        if empty:
            key = Patch(color=theme_of(axes).hidden, label="no question there")
            figure.legend(handles=[key], loc="outside lower right", fontsize=8)
        figure.supxlabel(f"record length (1x = {summary.train_length} tokens)")
        figure.supylabel("position of the answer")
    return figure


def _methods(axes: Axes, summary: Summary) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the line style of each method of a study."""
    names = list(summary.methods)
    styles = line_styles(axes, [name.partition(":")[0] for name in names])
    return [(name, {**look, "markersize": 4}) for name, look in zip(names, styles, strict=True)]


def _middle(cells: DataFrame) -> Series[float]:
    return (cells["begin"] + cells["end"]) / 2
