"""Pictures, as matplotlib figures; nothing here touches pyplot or its global state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A hue, a marker and a line for each kind of method, darker for larger factors. Methods that agree
#: cover each other, so the dynamic ones are dashed.
STYLES = {
    "interpolation": ("Oranges", "v", "-"),
    "ntk": ("Blues", "o", "-"),
    "dynamic-ntk": ("Greens", "s", "--"),
    "dynamic-interpolation": ("Purples", "D", "--"),
}


def study_figure(summary: dict[str, Any]) -> Figure:
    """A study at a glance: accuracy by length and by distance, perplexity by position.

    Args:
        summary: from `ntk_alibi.evaluation.study.summarise`.

    Returns:
        The figure; `.savefig(path)` writes it.
    """
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(entry["task"] for entry in summary["retrieval"]))
    prose = bool(summary["perplexity"])
    figure = Figure(figsize=(11, 3.3 * (len(tasks) + prose) + 0.6), layout="constrained")
    grid = figure.add_gridspec(len(tasks) + prose, 2)
    for row, task in enumerate(tasks):
        _accuracy_by_length(figure.add_subplot(grid[row, 0]), summary, task)
        _accuracy_by_distance(figure.add_subplot(grid[row, 1]), summary, task)
    if prose:
        _nats_by_position(figure.add_subplot(grid[len(tasks), :]), summary)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _accuracy_by_length(axes: Axes, summary: dict[str, Any], task: str) -> None:
    for method, label in summary["methods"].items():
        cells = [e for e in summary["retrieval"] if (e["task"], e["method"]) == (task, method)]
        accuracy = np.array([e["accuracy"] for e in cells])
        bounds = np.array([[e["low"] for e in cells], [e["high"] for e in cells]])
        axes.errorbar(
            [e["multiple"] for e in cells],
            100 * accuracy,
            yerr=100 * np.abs(bounds - accuracy),
            label=label,
            capsize=2,
            **_style(summary, method),
        )
    axes.set_title(f"{task}: longer records")
    axes.set_xlabel(f"length of the record / {summary['train_length']} tokens trained")
    _finish(axes, "accuracy, %", top=103)


def _accuracy_by_distance(axes: Axes, summary: dict[str, Any], task: str) -> None:
    for method in summary["methods"]:
        cells = [
            e
            for e in summary["by_distance"]
            if (e["task"], e["method"]) == (task, method) and e["accuracy"] is not None
        ]
        axes.plot(
            [(e["begin"] + e["end"]) / 2 for e in cells],
            [100 * e["accuracy"] for e in cells],
            **_style(summary, method),
        )
    axes.axvline(1, color="0.7", linestyle=":", zorder=0)
    axes.set_xlim(0, max(e["end"] for e in summary["by_distance"]))
    axes.set_title(f"{task}: farther answers, records of all lengths")
    axes.set_xlabel("distance from question to answer / training length")
    _finish(axes, "accuracy, %", top=103)


def _nats_by_position(axes: Axes, summary: dict[str, Any]) -> None:
    for method in summary["methods"]:
        cells = [e for e in summary["perplexity"] if e["method"] == method]
        middles = np.array([(e["begin"] + e["end"]) / 2 for e in cells])
        difference = np.array([e["difference"] for e in cells])
        half_width = np.array([e["half_width"] for e in cells])
        style = _style(summary, method)
        axes.plot(middles, difference, **style)
        axes.fill_between(
            middles,
            difference - half_width,
            difference + half_width,
            color=style["color"],
            alpha=0.15,
            linewidth=0,
        )
    axes.axvline(1, color="0.7", linestyle=":", zorder=0)
    first = next(iter(summary["methods"].values()))
    axes.set_title(f"prose: log perplexity minus that of {first} (band: 95 %, paired)")
    axes.set_xlabel("position / training length")
    _finish(axes, "nats a token", top=None)


def rounded_positions_plot(
    rounded: Mapping[str, tuple[ArrayLike, ArrayLike]], ax: Axes | None = None
) -> Axes:
    """Positions as dtypes hold them, over what they are: stairs where positions collide.

    Args:
        rounded: from names of dtypes to (positions, rounded positions), such as those of
            `ntk_alibi.precision.last_positions`.
        ax: axes to draw on; those of a new figure by default.

    Returns:
        The axes.
    """
    axes = _axes(ax)
    for (name, points), size in zip(rounded.items(), _shrinking(len(rounded)), strict=True):
        axes.scatter(*points, s=size, label=name)
    axes.set_title("positions as they are kept")
    axes.set_xlabel("position")
    axes.legend(frameon=False)
    _finish(axes, "position in the dtype", top=None)
    return axes


def exact_positions_plot(shares: Mapping[str, Mapping[int, float]], ax: Axes | None = None) -> Axes:
    """The share of positions that dtypes hold exactly, over windows.

    Args:
        shares: from names of dtypes to {window: share}, such as
            `ntk_alibi.precision.exact_fraction` gives.
        ax: axes to draw on; those of a new figure by default.

    Returns:
        The axes.
    """
    axes = _axes(ax)
    for name, points in shares.items():
        percent = [100 * share for share in points.values()]
        axes.plot(list(points), percent, marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set_title("positions that are exact")
    axes.set_xlabel("positions in the window")
    axes.legend(frameon=False)
    _finish(axes, "exact, %", top=103)
    return axes


def alibi_rows_plot(rows: Mapping[str, ArrayLike], ax: Axes | None = None) -> Axes:
    """Biases of one query over the distance to its keys, the newest at 0.

    Args:
        rows: from names to biases (keys,), whose last is of the newest key, such as those of
            `ntk_alibi.precision.alibi_row`.
        ax: axes to draw on; those of a new figure by default.

    Returns:
        The axes.
    """
    axes = _axes(ax)
    for (name, row), size in zip(rows.items(), _shrinking(len(rows)), strict=True):
        axes.scatter(np.arange(1 - np.size(row), 1), row, s=size, label=name)
    axes.set_title("bias of one query")
    axes.set_xlabel("key's distance behind the query")
    axes.legend(frameon=False)
    _finish(axes, "bias", top=None)
    return axes


def _axes(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure."""
    from matplotlib.figure import Figure

    return Figure(figsize=(5, 3.6), layout="constrained").subplots() if ax is None else ax


def _shrinking(count: int) -> list[float]:
    """Sizes of dots of which later ones leave earlier ones visible where they agree."""
    return [24.0 / 3**i for i in range(count)]


def _finish(axes: Axes, ylabel: str, top: float | None) -> None:
    axes.set_ylabel(ylabel)
    if top is not None:
        axes.set_ylim(0, top)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _style(summary: dict[str, Any], method: str) -> dict[str, Any]:
    """Color, marker and line of a method; black for the original."""
    import matplotlib

    kind, colon, _ = method.partition(":")
    if not colon:
        return {"color": "black", "marker": "x", "markersize": 4, "linestyle": "-"}
    colormap, marker, line = STYLES[kind]
    family = [name for name in summary["methods"] if name.partition(":")[0] == kind]
    shade = 0.5 + 0.4 * (family.index(method) + 1) / len(family)
    color = matplotlib.colormaps[colormap](shade)
    return {"color": color, "marker": marker, "markersize": 4, "linestyle": line}
