"""Pictures, as matplotlib figures; nothing here touches pyplot or its global state."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

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


def depth_figure(summary: dict[str, Any]) -> Figure:
    """Accuracy over the length of a record and the depth of the answer in it, a map a method.

    Args:
        summary: as for `study_figure`.

    Returns:
        The figure; white where no record of that length asks about that depth.
    """
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(entry["task"] for entry in summary["by_depth"]))
    methods = summary["methods"]
    size = (1.9 * len(methods) + 1.2, 2.3 * len(tasks) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(tasks), len(methods), squeeze=False, sharex=True, sharey=True)
    pairs = itertools.product(tasks, methods)
    for axes, (task, method) in zip(grid.flat, pairs, strict=True):
        cells = [e for e in summary["by_depth"] if (e["task"], e["method"]) == (task, method)]
        multiples = sorted({e["multiple"] for e in cells})
        depths = sorted({e["begin"] for e in cells})
        image = np.full((len(depths), len(multiples)), np.nan)
        for e in cells:
            if e["accuracy"] is not None:
                place = depths.index(e["begin"]), multiples.index(e["multiple"])
                image[place] = 100 * e["accuracy"]
        map_ = axes.imshow(image, cmap="viridis", vmin=0, vmax=100, aspect="auto")
        axes.set_title(f"{task}, {methods[method]}", fontsize=8)
        axes.set_xticks(range(len(multiples)), [f"{m:g}x" for m in multiples])
        axes.set_yticks([-0.5, len(depths) - 0.5], ["begin", "end"])
    figure.colorbar(map_, ax=grid, label="accuracy, %", shrink=0.8)
    figure.supxlabel(f"length of the record (1x = {summary['train_length']} tokens)", fontsize=9)
    figure.supylabel("where the answer stands", fontsize=9)
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
