"""Measurements: evaluations over length, depth and position, extrapolation, speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ntk_alibi import _checks
from ntk_alibi.plots import checks
from ntk_alibi.plots.style import (
    color_bar,
    drawing,
    drawing_figure,
    finish,
    heat,
    legend,
    line_styles,
    shared_legend,
    theme_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def study_figure(summary: dict[str, Any]) -> Figure:
    """A study at a glance: accuracy by length and by distance, perplexity by position.

    Args:
        summary: from `ntk_alibi.evaluation.comparing.summary.summarise`.

    Returns:
        The figure, not pyplot's; `.savefig(path)` writes it.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import ntk_alibi as na
        >>> nats = {"method": "original", "begin": 0.0, "end": 1.0, "nats": 2.7,
        ...         "difference": 0.0, "half_width": 0.01}
        >>> summary = {"train_length": 2048, "methods": {"original": "original"}, "retrieval": [],
        ...            "by_distance": [], "perplexity": [nats]}
        >>> len(na.plots.study_figure(summary).axes)
        1
    """
    with drawing_figure() as new_figure:
        tasks = list(dict.fromkeys(entry["task"] for entry in summary["retrieval"]))
        prose = bool(summary["perplexity"])
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
    summary: dict[str, Any],
    task: str,
    *,
    by: Literal["length", "distance"] = "length",
    ax: Axes | None = None,
) -> Axes:
    """Accuracy of all methods of a study, by the length of records or the distance of answers.

    Args:
        summary: from `ntk_alibi.evaluation.comparing.summary.summarise`.
        task: one of its tasks, "lines" or "topics".
        by: "length", with 95 % intervals, or "distance", records of all lengths together.
        ax: to draw into.

    Returns:
        The axes: a line for each method, in % over training lengths.

    Raises:
        ValueError: task or by is unknown.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> cells = [
        ...     {"task": "lines", "method": "original", "multiple": m, "cases": 64,
        ...      "accuracy": a, "low": a - 0.1, "high": min(a + 0.1, 1.0)}
        ...     for m, a in ((1.0, 0.9), (2.0, 0.5))
        ... ]
        >>> methods = {"original": "original"}
        >>> summary = {"train_length": 2048, "methods": methods, "retrieval": cells}
        >>> ax = na.plots.accuracy_curves(summary, "lines")
        >>> ax.get_lines()[0].get_ydata().tolist()
        [90.0, 50.0]
        >>> plt.close(ax.figure)
    """
    _checks.choice("task", task, sorted({entry["task"] for entry in summary["retrieval"]}))
    _checks.choice("by", by, ("length", "distance"))
    entries = summary["retrieval" if by == "length" else "by_distance"]
    with drawing(ax) as axes:
        for method, label, look in _methods(axes, summary):
            cells = [
                e
                for e in entries
                if (e["task"], e["method"]) == (task, method) and e["accuracy"] is not None
            ]
            accuracy = np.array([e["accuracy"] for e in cells])
            places = [e["multiple"] if by == "length" else _middle(e) for e in cells]
            bounds = np.array([[e["low"] for e in cells], [e["high"] for e in cells]])
            bars = 100 * np.abs(bounds - accuracy) if by == "length" else None
            axes.errorbar(places, 100 * accuracy, yerr=bars, label=label, capsize=2, **look)
        axes.set_ylim(0, 103)
        if by == "length":
            xlabel = f"length of the record / {summary['train_length']} tokens trained"
            finish(axes, f"{task}: longer records", xlabel, "accuracy, %")
        else:
            _mark_training_length(axes, 1)
            axes.set_xlim(0, max(e["end"] for e in summary["by_distance"]))
            xlabel = "distance from question to answer / training length"
            finish(axes, f"{task}: farther answers, records of all lengths", xlabel, "accuracy, %")
        legend(axes, ncols=4)
    return axes


def perplexity_curves(summary: dict[str, Any], *, ax: Axes | None = None) -> Axes:
    """What the methods of a study change in the perplexity of prose, by position.

    Args:
        summary: from `ntk_alibi.evaluation.comparing.summary.summarise`, with prose.
        ax: to draw into.

    Returns:
        The axes: nats a token above the first method, and 95 % bands, over training lengths.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> cells = [
        ...     {"method": method, "begin": 0.0, "end": 1.0, "nats": 2.7 + change,
        ...      "difference": change, "half_width": 0.01}
        ...     for method, change in (("original", 0.0), ("ntk:2", 0.02))
        ... ]
        >>> methods = {"original": "original", "ntk:2": "NTK a=2"}
        >>> summary = {"train_length": 2048, "methods": methods, "perplexity": cells}
        >>> ax = na.plots.perplexity_curves(summary)
        >>> ax.get_xlabel() != ""
        True
        >>> plt.close(ax.figure)
    """
    with drawing(ax) as axes:
        for method, label, look in _methods(axes, summary):
            cells = [e for e in summary["perplexity"] if e["method"] == method]
            middles = [_middle(e) for e in cells]
            difference = np.array([e["difference"] for e in cells])
            half_width = np.array([e["half_width"] for e in cells])
            axes.plot(middles, difference, label=label, **look)
            _band(axes, middles, difference, half_width, look["color"])
        _mark_training_length(axes, 1)
        first = next(iter(summary["methods"].values()))
        title = f"prose: log perplexity minus that of {first} (band: 95 %, paired)"
        finish(axes, title, "position / training length", "nats a token")
        legend(axes, ncols=4)
    return axes


def accuracy_map(
    lengths: Sequence[Any], depths: Sequence[Any], accuracy: ArrayLike, *, ax: Axes | None = None
) -> Axes:
    """Accuracy over the length of a text and the depth of the answer in it.

    Args:
        lengths: names or numbers of the columns.
        depths: names or numbers of the rows, from the top.
        accuracy: (depths, lengths) between 0 and 1; NaN where nothing was measured, which is grey.
        ax: to draw into.

    Returns:
        The axes, an image in % with the numbers in its cells.

    Raises:
        ValueError: accuracy has another shape or other numbers.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> ax = na.plots.accuracy_map([512, 1024], [0, 50, 100], [[1, 0.5], [1, 0], [1, 0.9]])
        >>> [text.get_text() for text in ax.texts]
        ['100', '50', '100', '0', '100', '90']
        >>> plt.close(ax.figure)
    """
    percent = 100 * checks.accuracies("accuracy", accuracy, (len(depths), len(lengths)))
    size = (1.8 + 0.7 * len(lengths), 1.3 + 0.4 * len(depths))
    with drawing(ax, size=(max(4.5, size[0]), max(2.5, size[1]))) as axes:
        heat(axes, percent, "accuracy, %", vmin=0, vmax=100)
        for (row, column), value in np.ndenumerate(percent):
            if np.isfinite(value):
                color = "white" if value < 55 else "black"
                axes.text(
                    column, row, f"{value:.0f}", ha="center", va="center", color=color, fontsize=8
                )
        axes.set_xticks(range(len(lengths)), [f"{length}" for length in lengths])
        axes.set_yticks(range(len(depths)), [f"{depth}" for depth in depths])
        axes.spines[:].set_visible(False)
        finish(axes, "Accuracy by length and depth", "length", "depth of the answer")
    return axes


def depth_figure(summary: dict[str, Any]) -> Figure:
    """Accuracy of a study over the length of a record and the depth of the answer: a map a method.

    Args:
        summary: from `ntk_alibi.evaluation.comparing.summary.summarise`.

    Returns:
        The figure, not pyplot's; no colour where no record of a length asks about that depth.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import ntk_alibi as na
        >>> cells = [
        ...     {"task": "lines", "method": "original", "multiple": 1.0, "begin": depth,
        ...      "accuracy": 0.9}
        ...     for depth in (0.0, 0.5)
        ... ]
        >>> summary = {"train_length": 2048, "methods": {"original": "original"}, "by_depth": cells}
        >>> figure = na.plots.depth_figure(summary)
        >>> figure.axes[0].images[0].get_array().tolist()
        [[90.0], [90.0]]
    """
    with drawing_figure() as new_figure:
        tasks = list(dict.fromkeys(entry["task"] for entry in summary["by_depth"]))
        methods = summary["methods"]
        size = (1.9 * len(methods) + 1.2, 2.3 * len(tasks) + 0.6)
        figure = new_figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(tasks), len(methods), squeeze=False, sharex=True, sharey=True)
        for axes, (task, method) in zip(grid.flat, product(tasks, methods), strict=True):
            lengths, depths, percent = _by_depth(summary["by_depth"], task, method)
            image = heat(axes, percent, None, vmin=0, vmax=100)
            axes.set_title(f"{task}, {methods[method]}", fontsize=8)
            axes.set_xticks(range(len(lengths)), [f"{length:g}x" for length in lengths])
            axes.set_yticks([-0.5, len(depths) - 0.5], ["begin", "end"])
        color_bar(image, list(grid.flat), "accuracy, %")
        figure.supxlabel(f"length of the record (1x = {summary['train_length']} tokens)")
        figure.supylabel("where the answer stands")
    return figure


def _by_depth(
    entries: list[dict[str, Any]], task: str, method: str
) -> tuple[list[float], list[float], NDArray[np.float64]]:
    """Lengths, depths and accuracy in % of a task and method, (depths, lengths)."""
    cells = [entry for entry in entries if (entry["task"], entry["method"]) == (task, method)]
    lengths = sorted({entry["multiple"] for entry in cells})
    depths = sorted({entry["begin"] for entry in cells})
    percent = np.full((len(depths), len(lengths)), np.nan)
    for entry in cells:
        if entry["accuracy"] is not None:
            place = depths.index(entry["begin"]), lengths.index(entry["multiple"])
            percent[place] = 100 * entry["accuracy"]
    return lengths, depths, percent


def extrapolation_curves(
    lengths: Sequence[float],
    values: Mapping[str, Sequence[float]],
    *,
    half_widths: Mapping[str, Sequence[float]] | None = None,
    train_length: float | None = None,
    quantity: str = "nats a token",
    ax: Axes | None = None,
) -> Axes:
    """What models make of texts that are longer than those they were trained at.

    Args:
        lengths: at which all were measured.
        values: for each label, one number a length; NaN where there is none.
        half_widths: of bands around some of them.
        train_length: marked by a line.
        quantity: what the numbers are.
        ax: to draw into.

    Returns:
        The axes: a line for each label, over lengths, logarithmic.

    Raises:
        ValueError: there are not as many numbers as lengths.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> curves = {"sinusoidal": [2.7, 3.4, 5.1], "ALiBi": [2.7, 2.7, 2.6]}
        >>> ax = na.plots.extrapolation_curves([512, 1024, 2048], curves, train_length=512)
        >>> ax.get_lines()[1].get_ydata().tolist()
        [2.7, 2.7, 2.6]
        >>> plt.close(ax.figure)
    """
    with drawing(ax) as axes:
        styles = line_styles(axes, list(values))
        for (label, numbers), look in zip(values.items(), styles, strict=True):
            curve = checks.as_many(f"values[{label!r}]", numbers, len(lengths))
            axes.plot(lengths, curve, label=label, **look)
            if half_widths and label in half_widths:
                name = f"half_widths[{label!r}]"
                width = checks.as_many(name, half_widths[label], len(lengths))
                _band(axes, lengths, curve, width, look["color"])
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:g}" for length in lengths])
        axes.minorticks_off()
        if train_length is not None:
            _mark_training_length(axes, train_length)
        finish(axes, "Beyond the training length", "tokens", quantity)
        legend(axes)
    return axes


def benchmark_curves(
    lengths: Sequence[float],
    seconds: Mapping[str, Sequence[float | None]],
    *,
    ours: Sequence[str] = (),
    baseline: str | None = None,
    limit: Sequence[float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Time over length, both logarithmic.

    Args:
        lengths: at which was measured.
        seconds: for each label, one number a length, None where it was not measured.
        ours: labels to bring out, in one hue, fuller for each that comes later.
        baseline: the label of the one to compare with, dashed and without a hue.
        limit: seconds below which nothing is possible.
        ax: to draw into.

    Returns:
        The axes: a line for each label that was measured, in ms.

    Raises:
        ValueError: there are not as many numbers as lengths.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> ax = na.plots.benchmark_curves([128, 256], {"a": [0.001, 0.003], "b": [0.002, None]})
        >>> ax.get_lines()[0].get_ydata().tolist()
        [1.0, 3.0]
        >>> plt.close(ax.figure)
    """
    kinds = [
        "original" if label == baseline else "ntk" if label in ours else label for label in seconds
    ]
    with drawing(ax) as axes:
        theme = theme_of(axes)
        for (label, numbers), look in zip(seconds.items(), line_styles(axes, kinds), strict=True):
            curve = 1e3 * checks.as_many(f"seconds[{label!r}]", numbers, len(lengths))
            if np.isnan(curve).all():
                continue
            if label in ours:
                look |= {"linewidth": 2.2, "zorder": 3}
            elif label == baseline:
                look |= {"linestyle": "--", "marker": "."}
            else:
                look |= {"linewidth": 1.0, "markersize": 4}
            axes.plot(lengths, curve, label=label, **look)
        if limit is not None:
            least = 1e3 * checks.as_many("limit", limit, len(lengths))
            label = "all pairs at the machine's peak"
            axes.plot(lengths, least, color=theme.quiet, linestyle=":", label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:g}" for length in lengths], rotation=45)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        finish(axes, "Time", "tokens", "ms")
        legend(axes, below=-0.26)
    return axes


def _methods(axes: Axes, summary: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, label and look of each method of a study."""
    names = list(summary["methods"])
    styles = line_styles(axes, [name.partition(":")[0] for name in names])
    return [
        (name, label, {**look, "markersize": 4})
        for (name, label), look in zip(summary["methods"].items(), styles, strict=True)
    ]


def _middle(entry: dict[str, Any]) -> float:
    return float(entry["begin"] + entry["end"]) / 2


def _band(axes: Axes, places: Any, middle: Any, half_width: Any, color: Any) -> None:
    low, high = middle - half_width, middle + half_width
    axes.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)


def _mark_training_length(axes: Axes, place: float) -> None:
    axes.axvline(place, color=theme_of(axes).quiet, linestyle=":", zorder=0)
