"""Confidence intervals of accuracies and means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

#: Half the width of a normal 95 % interval in standard deviations.
NORMAL = NormalDist().inv_cdf(0.975)


def accuracy_interval(correct: Sequence[int], cases: Sequence[int]) -> tuple[float, float]:
    """Return Wilson's 95 % interval for an accuracy over clusters of cases.

    Questions about one record depend on each other, so the number of cases is divided by the design
    effect: the variance between clusters over the binomial variance, and at least 1.

    Args:
        correct: number of right answers in each cluster.
        cases: number of questions in each cluster, each > 0.

    Returns:
        (low, high).
    """
    total = sum(cases)
    accuracy = sum(correct) / total
    size = total / _design_effect(correct, cases)
    z = NORMAL
    middle = accuracy + z * z / (2 * size)
    width = z * math.sqrt(accuracy * (1 - accuracy) / size + z * z / (4 * size * size))
    scale = 1 + z * z / size
    return max(0.0, (middle - width) / scale), min(1.0, (middle + width) / scale)


def accuracy_entry(correct: Sequence[int], cases: Sequence[int]) -> dict[str, Any]:
    """Return the number of cases, the accuracy and the ends of its interval, None without cases.

    Args:
        correct: number of right answers in each cluster.
        cases: number of questions in each cluster; clusters without any are ignored.
    """
    pairs = [(c, n) for c, n in zip(correct, cases, strict=True) if n]
    if not pairs:
        return {"cases": 0, "accuracy": None, "low": None, "high": None}
    correct, cases = zip(*pairs, strict=True)
    low, high = accuracy_interval(correct, cases)
    return {"cases": sum(cases), "accuracy": sum(correct) / sum(cases), "low": low, "high": high}


def _design_effect(correct: Sequence[int], cases: Sequence[int]) -> float:
    clusters, total = len(cases), sum(cases)
    accuracy = sum(correct) / total
    binomial = accuracy * (1 - accuracy) / total
    if clusters < 2 or binomial == 0:
        return 1.0
    residuals = sum((c - accuracy * n) ** 2 for c, n in zip(correct, cases, strict=True))
    between = residuals / total**2 * clusters / (clusters - 1)
    return max(1.0, between / binomial)


def half_width(values: Any) -> Any:
    """Return half the width of Student's 95 % interval for means over the first axis.

    For n values it is t sd / sqrt(n), with n - 1 degrees of freedom; NaN for fewer than two values.
    """
    from scipy.stats import t

    array = np.asarray(values, np.float64)
    count = len(array)
    if count < 2:
        return np.full(array.shape[1:], math.nan)[()]
    return t.ppf(0.975, count - 1) * array.std(axis=0, ddof=1) / math.sqrt(count)


def paired_difference(
    first: Sequence[int], second: Sequence[int], cases: Sequence[int]
) -> tuple[float, float]:
    """Return the difference of two accuracies on the same questions, and its 95 % half-width.

    Differences within a cluster depend on each other, so this is Student's interval over clusters.
    If the methods differ alike in all clusters, the data do not show the spread, and the half-width
    is NaN, as for a single cluster.

    Args:
        first: number of right answers of the first method in each cluster.
        second: the same for the second method.
        cases: number of questions in each cluster, each > 0.
    """
    gains = np.subtract(first, second, dtype=np.float64)
    sizes = np.asarray(cases, np.float64)
    difference = float(gains.sum() / sizes.sum())
    shares = difference + (gains - difference * sizes) / sizes.mean()
    if np.allclose(shares, difference):
        return difference, math.nan
    return difference, float(half_width(shares))
