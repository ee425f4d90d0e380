"""Pictures of measurements: extrapolation, and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ntk_alibi.plots.style import (
    band,
    checked_curve,
    drawing,
    finish,
    legend,
    mark_training_length,
    styled,
    theme_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def extrapolation_curves(
    lengths: Sequence[float],
    values: Mapping[str, Sequence[float]],
    *,
    half_widths: Mapping[str, Sequence[float]] | None = None,
    train_length: float | None = None,
    quantity: str = "nats per token",
    limits: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a measured quantity over text length, up to and beyond the training length.

    Args:
        lengths: text lengths in tokens.
        values: for each label, one value per length; NaN where there is no measurement.
        half_widths: for some of the labels, half the width of the band around each value.
        train_length: training length in tokens, at a vertical line.
        quantity: label of the y axis.
        limits: the least and the greatest possible value, such as (0, 100) for %; bands end there.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with a line for each label over lengths on a logarithmic axis.

    Raises:
        ValueError: a curve does not have one value per length.
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
        for label, measured, look in styled(axes, values):
            curve = checked_curve(f"values[{label!r}]", measured, len(lengths))
            axes.plot(lengths, curve, label=label, **look)
            if half_widths and label in half_widths:
                name = f"half_widths[{label!r}]"
                width = checked_curve(name, half_widths[label], len(lengths))
                band(axes, lengths, curve, width, look["color"], limits)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:g}" for length in lengths])
        axes.minorticks_off()
        if train_length is not None:
            mark_training_length(axes, train_length)
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
    """Draw time over length on logarithmic axes.

    Args:
        lengths: text lengths in tokens.
        seconds: for each label, one value per length, None where there is no measurement.
        ours: labels to emphasise; they share one hue, stronger for later ones.
        baseline: label of the curve to compare with, dashed in the colour of text.
        limit: lower bound of the seconds at each length, from the machine's peak.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with a line in ms for each label that has a measurement.

    Raises:
        ValueError: a curve does not have one value per length.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> seconds = {"a": [0.001, 0.003], "b": [0.002, None]}
        >>> ax = na.plots.benchmark_curves([128, 256], seconds)
        >>> ax.get_lines()[0].get_ydata().tolist()
        [1.0, 3.0]
        >>> plt.close(ax.figure)
    """
    kinds = [
        "original" if label == baseline else "ntk" if label in ours else label for label in seconds
    ]
    with drawing(ax) as axes:
        theme = theme_of(axes)
        for label, measured, look in styled(axes, seconds, kinds):
            curve = 1e3 * checked_curve(f"seconds[{label!r}]", measured, len(lengths))
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
            least = 1e3 * checked_curve("limit", limit, len(lengths))
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
