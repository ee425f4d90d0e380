"""`merge` of results over disjoint keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import ntk_alibi as na
from fuzz.bounds import Interval
from fuzz.compare import compare
from fuzz.draw import Draw
from fuzz.drawn.arrays import Format

Floats = NDArray[np.float64]


def merge(draw: Draw) -> None:
    """Check random parts; logsumexps far apart, -inf and equal ones among them."""
    form = Format.drawn(draw)
    shape = tuple(draw.integer(1, 4) for _ in range(4))
    parts = draw.integer(1, 5)
    outputs, exact = zip(
        *(form.array(draw, draw.normal(*shape)) for _ in range(parts)), strict=True
    )
    log_form = Format("float64" if form.name == "float64" else "float32", form.tensors)
    logs, exact_logs = zip(
        *(log_form.array(draw, _logs(draw, shape)) for _ in range(parts)), strict=True
    )
    output, log = na.merge(outputs, [x[..., 0] for x in logs])
    expected, expected_log = _merged(np.stack(exact), np.stack(exact_logs)[..., 0])
    # float64: the logarithms, their differences and powers err by some 2^-53 of themselves
    largest = np.abs(np.where(np.isinf(expected_log), 0.0, expected_log))
    error = 2.0**-50 * (
        np.max(np.abs(np.stack(exact)), axis=0) * (parts + largest[..., None]) + 1e-290
    )
    compare("output", output, Interval(expected, error, error), form.name)
    error = 2.0**-50 * (largest + parts)
    compare("logsumexp", log, Interval(expected_log, error, error), log_form.name)


def _logs(draw: Draw, shape: tuple[int, ...]) -> Floats:
    logs = draw.normal(*shape[:3], 1) * draw.power(-1, 4)
    logs[draw.generator.random(logs.shape) < 0.2] = -np.inf
    return logs


def _merged(outputs: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """Return sum_c exp(log_c - log) output_c and log = log sum_c exp(log_c)."""
    log = np.logaddexp.reduce(logs, axis=0)
    weights = np.exp(logs - np.where(np.isneginf(log), 0.0, log))
    return (weights[..., None] * outputs).sum(axis=0), log
