"""Products of queries and keys, plain and rotated, with their sizes and gradients.

Sizes are sums of magnitudes, to which rounding errors of the products are relative. Queries and
keys are (batch, heads, length, D), keys repeated for all query heads; factor is (..., Q or 1, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Products(Protocol):
    """Scores of all pairs before the bias."""

    values: Floats
    sizes: Floats

    def query_gradient(self, of_scores: Floats) -> Floats:
        """Return the gradient of the queries."""

    def key_gradient(self, of_scores: Floats) -> Floats:
        """Return the gradient of the keys."""

    def query_reach(self, sizes: Floats) -> Floats:
        """Return a bound of the queries' gradient, from magnitudes of the scores' gradient."""

    def key_reach(self, sizes: Floats) -> Floats:
        """Return a bound of the keys' gradient."""


class Plain:
    """factor q_i.k_j."""

    def __init__(self, query: Floats, key: Floats, factor: Any) -> None:
        self._query, self._key, self._factor = query, key, factor
        self.values = factor * (query @ key.swapaxes(-1, -2))
        self.sizes = np.abs(factor) * (np.abs(query) @ np.abs(key).swapaxes(-1, -2))

    def query_gradient(self, of_scores: Floats) -> Floats:
        """Return factor ds k."""
        gradient: Floats = (self._factor * of_scores) @ self._key
        return gradient

    def key_gradient(self, of_scores: Floats) -> Floats:
        """Return factor ds^T q."""
        gradient: Floats = (self._factor * of_scores).swapaxes(-1, -2) @ self._query
        return gradient

    def query_reach(self, sizes: Floats) -> Floats:
        """Return |factor| sizes |k|."""
        reach: Floats = (np.abs(self._factor) * sizes) @ np.abs(self._key)
        return reach

    def key_reach(self, sizes: Floats) -> Floats:
        """Return |factor| sizes^T |q|."""
        reach: Floats = (np.abs(self._factor) * sizes).swapaxes(-1, -2) @ np.abs(self._query)
        return reach


@dataclass(frozen=True)
class Rotation:
    """RoPE or XPOS: pair m turns by theta_m a token and decays by zeta_m^(1 / scale_base).

    Attributes:
        base: of the frequencies base^(-2m/R).
        pairs: R / 2.
        halves: whether pair m is (m, m + R/2), not (2m, 2m + 1).
        slower: divisor of the angles.
        scale_base, gamma: of XPOS; None for RoPE.
    """

    base: float
    pairs: int
    halves: bool = False
    slower: float = 1.0
    scale_base: float | None = None
    gamma: float = 0.4

    def channels(self, m: int) -> tuple[int, int]:
        """Return the two channels of a pair."""
        return (m, m + self.pairs) if self.halves else (2 * m, 2 * m + 1)

    def angle(self, m: int) -> float:
        """Return the angle of a pair for one token."""
        return float(self.base ** (-m / self.pairs) / self.slower)

    def turn(self, m: int, distance: Floats) -> NDArray[np.complex128]:
        """Return the complex factor of a pair at a distance."""
        log: Any = 1j * self.angle(m) * distance
        if self.scale_base is not None:
            zeta = (m / self.pairs + self.gamma) / (1.0 + self.gamma)
            # keys ahead are hidden, and their factors might overflow
            log = log + np.maximum(distance, 0.0) * (np.log(zeta) / self.scale_base)
        turn: NDArray[np.complex128] = np.exp(log)
        return turn


class Rotated:
    """factor times the product of rotated queries and keys, from the distance of each pair."""

    def __init__(
        self, query: Floats, key: Floats, factor: Any, rotation: Rotation, distance: Floats
    ) -> None:
        self._rotation = rotation
        rest = slice(2 * rotation.pairs, None)
        self._factor = factor
        self._rest = rest
        self._plain = Plain(query[..., rest], key[..., rest], factor)
        self._shapes = query.shape, key.shape
        self._pairs = [
            (*(self._complex(x, m) for x in (query, key)), rotation.turn(m, distance))
            for m in range(rotation.pairs)
        ]
        self.values, self.sizes = self._plain.values, self._plain.sizes
        for q, k, turn in self._pairs:
            product = q[..., :, None] * k.conj()[..., None, :] * turn
            self.values = self.values + factor * product.real
            self.sizes = self.sizes + np.abs(factor) * np.abs(product)

    def _complex(self, x: Floats, m: int) -> NDArray[np.complex128]:
        first, second = self._rotation.channels(m)
        return x[..., first] + 1j * x[..., second]

    def _gathered(self, shape: tuple[int, ...], rest: Floats, of_pairs: list[Any]) -> Floats:
        gradient = np.zeros(shape)
        gradient[..., self._rest] = rest
        for m, array in enumerate(of_pairs):
            first, second = self._rotation.channels(m)
            gradient[..., first], gradient[..., second] = array.real, array.imag
        return gradient

    def query_gradient(self, of_scores: Floats) -> Floats:
        """Return the sum over keys of ds k turned back."""
        ds = self._factor * of_scores
        parts = [(ds * turn.conj() * k[..., None, :]).sum(-1) for _, k, turn in self._pairs]
        return self._gathered(self._shapes[0], self._plain.query_gradient(of_scores), parts)

    def key_gradient(self, of_scores: Floats) -> Floats:
        """Return the sum over queries of ds q turned."""
        ds = self._factor * of_scores
        parts = [(ds * turn * q[..., :, None]).sum(-2) for q, _, turn in self._pairs]
        return self._gathered(self._shapes[1], self._plain.key_gradient(of_scores), parts)

    def query_reach(self, sizes: Floats) -> Floats:
        """Return a bound for both channels of a pair: the magnitude of the complex number."""
        ds = np.abs(self._factor) * sizes
        parts = [(ds * np.abs(t) * np.abs(k)[..., None, :]).sum(-1) for _, k, t in self._pairs]
        twice = [x * (1 + 1j) for x in parts]
        return self._gathered(self._shapes[0], self._plain.query_reach(sizes), twice)

    def key_reach(self, sizes: Floats) -> Floats:
        """Return a bound for both channels of a pair."""
        ds = np.abs(self._factor) * sizes
        parts = [(ds * np.abs(t) * np.abs(q)[..., :, None]).sum(-2) for q, _, t in self._pairs]
        twice = [x * (1 + 1j) for x in parts]
        return self._gathered(self._shapes[1], self._plain.key_reach(sizes), twice)
