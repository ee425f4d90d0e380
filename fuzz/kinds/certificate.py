"""Certified skipping: what tolerances change is within the promise, for hostile inputs, too."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.bounds import LEAST, ROUNDING, Bounds, Interval
from fuzz.compare import WrongError, compare
from fuzz.draw import Draw
from fuzz.drawn.arrays import as_float64
from fuzz.drawn.calls import Call, Wishes, drawn_call
from fuzz.kinds.forward import compare_results

Floats = NDArray[np.float64]


def certificate(draw: Draw) -> None:
    """Check a tolerance against the oracle, and against the same call that reads all keys.

    Both calls compute the same scores, so that their errors cannot hide what skipping does; they
    differ by sums over other keys, in another order, and by rounding.
    """
    tolerance = draw.one_of((0.0, 0.0, draw.power(-9, -0.01)))
    call = drawn_call(draw, Wishes(wide=False, poison=False), skip_tolerance=tolerance)
    output, log, stats = call.attend(return_logsumexp=True, return_stats=True)
    if not (stats.visited <= stats.visible).all():
        raise WrongError(f"visited {stats.visited} blocks of {stats.visible} visible ones")
    compare_results(call, (output, log))
    whole = call.attend(skip_tolerance=None, return_logsumexp=True)
    _compare(call, tolerance, whole, (output, log))


def _compare(call: Call, tolerance: float, whole: Any, skipped: Any) -> None:
    """Check the change of output and logsumexp against docs/exactness.md."""
    bounds, name = Bounds(call), call.form.name
    output, log = (as_float64(x) for x in whole)
    eps = max(tolerance, 2.0**-24)
    least, most = bounds.values_range
    mean = bounds.softmax.weights @ np.abs(call.exact[2])
    # Weights of the oracle err as scores do; where they err much, sums are at most the greatest.
    sure = bounds.log_weight_errors.max(initial=0.0) < 0.1
    size = 1.2 * mean if sure else np.abs(call.exact[2]).max(axis=2, initial=0.0)[:, :, None]
    noise = 4 * (bounds.sums + 4 * bounds.unit) * size
    if name == "bfloat16" and not bounds.rotated:
        noise = noise + 2 * ROUNDING[name] * size
    if bounds.joined:
        noise = noise + 2 * ROUNDING[name] * size
    allowed = eps * np.maximum(most - least, 0.0) + noise + LEAST[name] + 2.0**-100
    allowed = np.where(np.isneginf(log)[..., None], 0.0, allowed)
    allowed = allowed + ROUNDING[name] * np.abs(output)
    compare("output with a tolerance", skipped[0], Interval(output, allowed, allowed), name)
    finite = np.where(np.isneginf(log), 0.0, log)
    size_of_log = np.abs(finite) + math.log(call.sizes.keys + 1.0)
    noise_of_log = 2 * bounds.sums + 8 * bounds.unit * size_of_log
    lost = Interval(log, noise_of_log + math.log1p(eps), noise_of_log)
    compare("logsumexp with a tolerance", skipped[1], lost, "float32")
