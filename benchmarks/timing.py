"""Timing on a shared, noisy machine: all candidates in turn, several rounds, medians."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

Call = Callable[[], object]

#: Seconds between candidates of two runtimes: threads that wait busily slow the next candidate.
REST = 0.2


def interleaved(
    calls: Mapping[str, Call],
    rounds: int,
    seconds_per_turn: float,
    *,
    warm_up: bool = True,
    runtimes: Mapping[str, str] | None = None,
    before_turn: Call | None = None,
    before_round: Call | None = None,
) -> dict[str, float]:
    """Median seconds of each call, one turn of each a round, after one round to warm up.

    Args:
        calls: the candidates.
        rounds: how many turns each gets.
        seconds_per_turn: how long a turn lasts at least; calls are repeated until then, so that the
            machine, which dozed or did other things since the last turn, is awake for most of it.
        warm_up: whether there is a round that does not count, first.
        runtimes: whose threads each candidate uses; there is a rest where that changes.
        before_turn: called before each turn, not timed.
        before_round: called before each round, not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + warm_up):
        gc.collect()
        _call(before_round)
        runtime = None
        for name, call in calls.items():
            if runtimes and runtimes[name] != runtime:
                time.sleep(REST)
                runtime = runtimes[name]
            _call(before_turn)
            elapsed = _turn(call, seconds_per_turn)
            if number >= warm_up:
                seconds[name].append(elapsed)
    return {name: statistics.median(times) for name, times in seconds.items()}


def _turn(call: Call, seconds: float) -> float:
    """Mean seconds of a call within one turn."""
    begin = time.perf_counter()
    count = 0
    while count == 0 or time.perf_counter() - begin < seconds:
        result = call()
        del result  # its memory is part of what it costs
        count += 1
    return (time.perf_counter() - begin) / count


def _call(hook: Call | None) -> None:
    if hook:
        hook()
