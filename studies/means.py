"""Means over trainings of other seeds, each with texts of its own, and Student's intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ntk_alibi.evaluation.comparing.intervals import half_width
from ntk_alibi.evaluation.report.cells import with_ends, with_half_width


def share_interval(shares: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of shares in %, and the ends of its 95 % interval.

    The ends lie between 0 and 100. They are NaN for a single number.
    """
    mean, width = 100 * float(np.mean(shares)), 100 * float(half_width(shares))
    return mean, float(np.maximum(mean - width, 0.0)), float(np.minimum(mean + width, 100.0))


def share(shares: Sequence[float]) -> str:
    """Format the mean of shares in % and, for several that differ, its interval; "" for none."""
    return str(with_ends(*share_interval(shares))) if shares else ""


def plus_minus(values: Sequence[float], digits: int, sign: str = "+") -> str:
    """Format the mean and, for several values, half the width of its interval; "" for none.

    Args:
        values: the values.
        digits: number of digits behind the point.
        sign: "+" for differences, "" for others.
    """
    if not values:
        return ""
    return str(with_half_width(float(np.mean(values)), float(half_width(values)), digits, sign))


def points(gains: Sequence[float]) -> str:
    """Format the mean of gains in percentage points as `plus_minus` does."""
    return plus_minus([100 * gain for gain in gains], 0)


def curves(
    cells: Mapping[str, Sequence[Sequence[float]]], unit: float = 100.0
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return means and half-widths of each curve, for `plots.extrapolation_curves`.

    Args:
        cells: for each label, the values at each place, from none to many.
        unit: factor of means and half-widths.

    Returns:
        Means, NaN where there are no values, and half-widths, 0 where there are less than two.
    """
    means = {
        label: [unit * float(np.mean(x)) if x else math.nan for x in row]
        for label, row in cells.items()
    }
    widths = {
        label: [unit * float(np.nan_to_num(half_width(x))) for x in row]
        for label, row in cells.items()
    }
    return means, widths
