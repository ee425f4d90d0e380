"""The numbers of the C++ programs that tests build, and what examples/cpp prints for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import ntk_alibi as na

HEADS, TOKENS, ROOM, HEAD_DIM = 8, 600, 1024, 64


def numbers(state: int, rows: int, heads: int = HEADS) -> NDArray[np.float32]:
    """Return the numbers of the programs, (1, heads, rows, head_dim)."""
    drawn = np.empty(heads * rows * HEAD_DIM, np.float32)
    for i in range(drawn.size):
        state = (state * 1664525 + 1013904223) % 2**32
        drawn[i] = (state >> 8) / 2**23 - 1.0
    return drawn.reshape(1, heads, rows, HEAD_DIM)


def of_example(printed: str) -> dict[tuple[str, int], tuple[float, float]]:
    """Return logsumexp and first output of every head at the last token, as the example printed."""
    lines = [line.split() for line in printed.splitlines()]
    return {(name, int(head)): (float(log), float(out)) for name, head, log, out in lines}


def of_python() -> dict[tuple[str, int], tuple[float, float]]:
    """Return the same by Python's attention."""
    key, value = numbers(2, ROOM), numbers(3, ROOM)
    results = {}
    for name, query, keys, tolerance in (
        ("prompt", numbers(1, TOKENS), TOKENS, 0.0),
        ("token", numbers(4, 1), TOKENS + 1, None),
    ):
        output, logsumexp = na.attention(
            *(query, key[:, :, :keys], value[:, :, :keys], na.ALiBi(HEADS)),
            skip_tolerance=tolerance,
            return_logsumexp=True,
        )
        for head in range(HEADS):
            results[name, head] = float(logsumexp[0, head, -1]), float(output[0, head, -1, 0])
    return results
