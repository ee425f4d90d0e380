"""Dropout of attention weights: its counter-based random generator, and the factors of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


def philox4x32(counter: Sequence[Any], key: Sequence[int]) -> list[Any]:
    """Return the four words that Philox4x32-10 makes from four counter words and two key words.

    Words are integers below 2^32, or arrays of integers that broadcast. Each of ten rounds maps the
    counter (a, b, c, d) with the key (k, l) to::

        u = 0xD2511F53 a;  v = 0xCD9E8D57 c
        (high(v) ^ b ^ k, low(v), high(u) ^ d ^ l, low(u))

    Source: Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405, figure 2.
    """
    word = np.uint64(2**32)
    a, b, c, d = (np.asarray(x, np.uint64) for x in counter)
    for turn in range(10):
        k = np.uint64((key[0] + turn * 0x9E3779B9) % 2**32)
        l = np.uint64((key[1] + turn * 0xBB67AE85) % 2**32)  # noqa: E741
        of_a, of_c = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = of_c // word ^ b ^ k, of_c % word, of_a // word ^ d ^ l, of_a % word
    return [a, b, c, d]


def dropout_factors(shape: tuple[int, int, int, int], dropout: float, seed: int) -> Floats:
    """Return the factors by which dropout multiplies weights (batch, heads, queries, keys).

    The random integer of a weight, 0 <= r < 2^16, depends only on where the weight is: batch b,
    head h, key j, and i = keys - queries + query. With t = dropout 2^16, rounded to the nearest
    integer, the factor is 0 where r < t and 2^16 / (2^16 - t) elsewhere.
    """
    batch, heads, queries, keys = shape
    b, h, i, j = np.ogrid[:batch, :heads, keys - queries : keys, :keys]
    words = philox4x32((j // 8, i % 2**32, h, b), (seed % 2**32, seed // 2**32))
    word = np.choose(j // 2 % 4, np.broadcast_arrays(*words))
    drawn = word >> (16 * (j % 2)).astype(np.uint64) & np.uint64(0xFFFF)
    dropped = round(dropout * 2**16)
    return np.where(drawn < dropped, 0.0, 2**16 / max(2**16 - dropped, 1))
