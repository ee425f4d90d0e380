"""Dropout of weights: the random number of each pair by Philox4x32-10, and the pair's factor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROUNDS = 10
LOW = np.uint64(2**32 - 1)
HALF = np.uint64(32)


def random_words(counter: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return four words (..., 4) for four counter words (..., 4)."""
    words = counter
    for turn in range(ROUNDS):
        keys = [(seed >> 32 * i) + turn * step for i, step in ((0, 0x9E3779B9), (1, 0xBB67AE85))]
        left = words[..., 0] * np.uint64(0xD2511F53)
        right = words[..., 2] * np.uint64(0xCD9E8D57)
        first = right >> HALF ^ words[..., 1] ^ np.uint64(keys[0] & int(LOW))
        third = left >> HALF ^ words[..., 3] ^ np.uint64(keys[1] & int(LOW))
        words = np.stack([first, right & LOW, third, left & LOW], axis=-1)
    return words


def factors(shape: tuple[int, int, int, int], share: float, seed: int) -> Floats:
    """Return the factors of weights (batch, heads, Q, K)."""
    batch, heads, queries, keys = shape
    groups = -(-keys // 8)
    places = np.indices((batch, heads, queries, groups), np.int64)
    places[2] += keys - queries
    counter = np.stack([places[3], places[2], places[1], places[0]], axis=-1)
    words = random_words(counter.astype(np.uint64) & LOW, seed)
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=-1)
    values = halves.reshape(batch, heads, queries, groups * 8)[..., :keys]
    below = round(share * 65536)
    return np.where(values < below, 0.0, 65536 / max(65536 - below, 1))
