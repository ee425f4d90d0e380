"""Outputs and logsumexps of attention."""

from __future__ import annotations

from typing import Any

import ntk_alibi as na
from fuzz.bounds import Bounds
from fuzz.compare import compare, exactly
from fuzz.draw import Draw
from fuzz.drawn.arrays import as_float64
from fuzz.drawn.calls import Call, Wishes, drawn_call


def forward(draw: Draw) -> None:
    """Check one call, on two threads at times."""
    check(drawn_call(draw, Wishes(dropout=True)), threads=2 if draw.chance(0.02) else 1)


def check(call: Call, *, threads: int = 1) -> None:
    """Check that a call gives what the oracle gives."""
    before = [as_float64(x) for x in call.arrays]
    na.set_num_threads(threads)
    try:
        results = call.attend(return_logsumexp=True)
    finally:
        na.set_num_threads(1)
    compare_results(call, results)
    for array, values in zip(call.arrays, before, strict=True):
        exactly("argument after the call", array, values)


def compare_results(call: Call, results: Any, *, relative: bool = False) -> None:
    """Check output and logsumexp, with errors of the bias that are relative or not."""
    bounds = Bounds(call, relative)
    compare("output", results[0], bounds.output, call.form.name, call.ignored)
    log_dtype = "float64" if call.form.name == "float64" else "float32"
    compare("logsumexp", results[1], bounds.logsumexp, log_dtype, call.ignored)
