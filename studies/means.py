"""Means over trainings with different seeds and different texts, and Student's intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ntk_alibi import plots
from ntk_alibi.evaluation.comparing.intervals import half_width
from ntk_alibi.evaluation.report.cells import with_ends, with_half_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The values at each point of a curve; there may be none.
Cells = Sequence[Sequence[float]]


def share_interval(shares: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of shares in %, and the ends of its 95 % interval.

    The ends are between 0 and 100, and NaN for a single share.
    """
    mean, width = 100 * float(np.mean(shares)), 100 * float(half_width(shares))
    return mean, float(np.maximum(mean - width, 0.0)), float(np.minimum(mean + width, 100.0))


def share(shares: Sequence[float]) -> str:
    """Format the mean of shares in %, with its interval if they differ; "" for none."""
    return with_ends(*share_interval(shares)) if shares else ""


def plus_minus(values: Sequence[float], digits: int, sign: str = "+") -> str:
    """Format the mean, with half the width of its interval for several values; "" for none.

    Args:
        values: the values.
        digits: number of digits behind the point.
        sign: "+" for differences, "" for others.
    """
    if not values:
        return ""
    return with_half_width(float(np.mean(values)), float(half_width(values)), digits, sign)


def points(gains: Sequence[float]) -> str:
    """Format the mean of gains in percentage points as `plus_minus` does."""
    return plus_minus([100 * gain for gain in gains], 0)


def paired_p(gains: Sequence[float]) -> str:
    """Format p of the paired t test of gains; "" where they do not vary."""
    from scipy.stats import ttest_1samp

    if len(gains) < 2 or float(np.std(gains)) == 0.0:
        return ""
    return p_value(ttest_1samp(gains, 0.0).pvalue)


def p_value(p: float) -> str:
    """Format a p-value to three digits, and one that is smaller as below 0.001."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def curve_means(cells: Mapping[str, Cells], unit: float = 100.0) -> dict[str, list[float]]:
    """Return the mean at each point of each curve, times a unit; NaN where there are no values."""
    return {
        label: [unit * float(np.mean(x)) if x else math.nan for x in row]
        for label, row in cells.items()
    }


def curves(
    cells: Mapping[str, Cells],
    multiples: Sequence[int],
    train_length: int,
    quantity: str,
    *,
    ax: Axes,
    unit: float = 100.0,
    limits: tuple[float, float] | None = (0.0, 100.0),
) -> Axes:
    """Draw means over length, with bands of their intervals where there are several values.

    Args:
        cells: for each label, the values at each of the multiples.
        multiples: lengths of texts in training lengths.
        train_length: training length in tokens.
        quantity: label of the y axis.
        ax: axes to draw into.
        unit: factor of the values; in % by default.
        limits: the least and the greatest value that the quantity can have.
    """
    widths = {
        label: [unit * float(np.nan_to_num(half_width(x))) for x in row]
        for label, row in cells.items()
    }
    return plots.extrapolation_curves(
        [multiple * train_length for multiple in multiples],
        curve_means(cells, unit),
        half_widths=widths,
        train_length=train_length,
        quantity=quantity,
        limits=limits,
        ax=ax,
    )
