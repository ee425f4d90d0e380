"""The compared rules for the factor of dynamic NTK, and the ways in which a text is read.

A rule gives the factor of each pass from the number of tokens that are known then. Cached keys keep
what they were computed with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

#: The factor at the training length.
RATE = 2.0

#: The factor of each pass, from the tokens known at the end of each and the training length.
Rule: TypeAlias = Callable[[Sequence[int], int], list[float]]


def published(ends: Sequence[int], train_length: int) -> list[float]:
    """Return max(1, rate n / train_length)."""
    return [max(1.0, RATE * n / train_length) for n in ends]


def in_steps(ends: Sequence[int], train_length: int) -> list[float]:
    """Return the published factors, rounded down to powers of the square root of 2."""
    return [2 ** (math.floor(2 * math.log2(a) + 1e-9) / 2) for a in published(ends, train_length)]


def in_steps_beyond(ends: Sequence[int], train_length: int) -> list[float]:
    """Return the factors in steps, and 1 up to the training length."""
    steps = in_steps(ends, train_length)
    return [a if n > train_length else 1.0 for n, a in zip(ends, steps, strict=True)]


def held(ends: Sequence[int], train_length: int) -> list[float]:
    """Return the published factor of the first pass, until the text is twice as long."""
    first, kept = ends[0], []
    for n in ends:
        first = n if n > 2 * first else first
        kept.append(first)
    return published(kept, train_length)


def as_in_rope(ends: Sequence[int], train_length: int) -> list[float]:
    """Return max(1, rate n / train_length - (rate - 1)), as RoPE's dynamic NTK has it."""
    return [max(1.0, RATE * n / train_length - (RATE - 1.0)) for n in ends]


#: The rules, simplest first; `ORIGINAL` is stock ALiBi, for comparison.
RULES: dict[str, Rule] = {
    "published": published,
    "as in RoPE": as_in_rope,
    "in steps": in_steps,
    "in steps, 1 up to the training length": in_steps_beyond,
    "held": held,
}
ORIGINAL = "original"


def original(ends: Sequence[int], train_length: int) -> list[float]:
    """Return 1 for each pass."""
    del train_length
    return [1.0] * len(ends)


#: How a text of n tokens is read: the tokens known at the end of each pass. Growth is in several
#: passes, as a conversation grows.
WAYS: dict[str, Callable[[int], list[int]]] = {
    "one pass": lambda n: [n],
    "two halves": lambda n: [n // 2, n],
    "grown by 5 %": lambda n: _grown(n, 1.05, 1),
    "grown by 25 %": lambda n: _grown(n, 1.25, 3),
    "grown by 100 %": lambda n: _grown(n, 2.0, 7),
}


def _grown(n: int, growth: float, passes: int) -> list[int]:
    first = int(n / growth)
    return [first, *(first + (n - first) * (i + 1) // passes for i in range(passes))]
