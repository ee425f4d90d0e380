"""Timing on a shared, noisy machine: medians over rounds in which the candidates take turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], object]

#: Seconds of rest after a candidate with another thread pool, whose threads wait busily for a while
#: and would slow the next one.
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
    of: Callable[[list[float]], Any] = statistics.median,
) -> dict[str, Any]:
    """Return median seconds of each call; in each round, each call gets one turn.

    Args:
        calls: candidates by name.
        rounds: number of timed turns of each candidate.
        seconds_per_turn: a turn repeats the call for at least so long, so that the processor runs
            at full speed for most of it.
        warm_up: whether to start with a round that is not timed.
        runtimes: for each candidate, the library whose thread pool it uses; where the library
            changes, there are `REST` seconds of rest.
        before_turn: called before each turn, not timed.
        before_round: called before each round, not timed.
        of: what is returned of the seconds of a call's turns.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + warm_up):
        gc.collect()
        if before_round is not None:
            before_round()
        runtime = None
        for name, call in calls.items():
            if runtimes and runtimes[name] != runtime:
                time.sleep(REST)
                runtime = runtimes[name]
            if before_turn is not None:
                before_turn()
            elapsed = _turn(call, seconds_per_turn)
            if number >= warm_up:
                seconds[name].append(elapsed)
    return {name: of(times) for name, times in seconds.items()}


def _turn(call: Call, seconds: float) -> float:
    """Return the mean seconds of a call within one turn."""
    begin = time.perf_counter()
    count = 0
    while count == 0 or time.perf_counter() - begin < seconds:
        result = call()
        del result  # freeing its memory is timed, too
        count += 1
    return (time.perf_counter() - begin) / count
