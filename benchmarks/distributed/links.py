"""Time that an exchange takes on a simulated link, computed from bytes, messages and a latency."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.distributed.wire import Traffic

GIGABITS = (1, 10, 100)


def header(latency: float) -> str:
    """Return the header of cells of `tokens_per_second`."""
    rates = ", ".join(map(str, GIGABITS))
    return (
        f"computed: 1000 tokens/s that the exchange of a layer allows at {rates} Gbit/s, "
        f"{1e6 * latency:g} µs a message"
    )


def tokens_per_second(length: int, traffic: Sequence[Traffic], *, latency: float) -> str:
    """Return thousands of tokens a second at all rates; the slowest process counts.

    Args:
        length: number of tokens of all processes.
        traffic: bytes and messages of each process.
        latency: seconds that each message takes.
    """
    cells = []
    for rate in GIGABITS:
        seconds = max(x.seconds(1e9 * rate, latency) for x in traffic)
        cells.append(f"{length / seconds / 1e3:.0f}")
    return ", ".join(cells)
