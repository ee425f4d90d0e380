"""Random choices for one case, from its kind and seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Floats = NDArray[np.float64]


class Draw:
    """The source of random choices: the same for a kind and a seed on every machine.

    Attributes:
        values: the source of arrays.
        notes: what was drawn, for a report.
    """

    def __init__(self, kind: str, seed: int) -> None:
        self.notes: list[object] = []
        self._random = random.Random(f"{kind} {seed}")
        self.generator = np.random.Generator(np.random.SFC64(self._random.getrandbits(64)))

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self._random.random() < probability

    def integer(self, least: int, most: int) -> int:
        """Return an integer from least to most, both included."""
        return self._random.randint(least, most)

    def uniform(self, least: float, most: float) -> float:
        """Return a number between two others."""
        return self._random.uniform(least, most)

    def power(self, least: float, most: float, base: float = 10.0) -> float:
        """Return a power of base with an exponent between two values."""
        return float(base ** self._random.uniform(least, most))

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of some choices."""
        return self._random.choice(choices)

    def weighted(self, choices: Mapping[T, float]) -> T:
        """Return one of some choices, drawn by weight."""
        return self._random.choices(list(choices), list(choices.values()))[0]

    def normal(self, *shape: int) -> Floats:
        """Return normal values."""
        return self.generator.standard_normal(shape)

    def integers(self, least: int, most: int, shape: Any) -> NDArray[np.int64]:
        """Return integers from least to most, both included."""
        integers: NDArray[np.int64] = self.generator.integers(least, most, shape, endpoint=True)
        return integers
