"""Timing on a shared, noisy machine: all candidates in turn, several rounds, medians."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

Call = Callable[[], object]


def interleaved(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Median seconds of each call, one repetition of each a round after one to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            gc.collect()
            begin = time.perf_counter()
            result = call()
            elapsed = time.perf_counter() - begin
            del result
            if number:
                seconds[name].append(elapsed)
    return {name: statistics.median(times) for name, times in seconds.items()}
