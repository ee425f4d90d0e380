"""Slopes of ALiBi, and scalings of their exponents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def exponents(heads: int, rule: str = "press") -> Floats:
    """Return e_h, head by head; the slope is 2^-e_h."""
    if rule == "geometric":
        return np.array([8.0 * h / heads for h in range(1, heads + 1)])
    power = 2 ** (heads.bit_length() - 1)
    first = [8.0 * h / power for h in range(1, power + 1)]
    rest = [4.0 * (2 * i - 1) / power for i in range(1, heads - power + 1)]
    return np.array(first + rest)


def scaled(e: Floats, weights: Floats, factor: Any) -> Floats:
    """Return slopes 2^-(e_h + t_h log2 a), heads as axis 1 of factors (batch, ...)."""
    factor = np.asarray(factor, np.float64)
    shape = (-1,) + (1,) * max(factor.ndim - 1, 0)
    logs = np.log2(factor)[:, None] if factor.ndim else math.log2(float(factor))
    result: Floats = 2.0 ** -(e.reshape(shape) + weights.reshape(shape) * logs)
    return result


def dynamic_factor(rate: float, lengths: Any, train_length: int) -> Floats:
    """Return a = max(rate n / train_length, 1)."""
    return np.maximum(rate * np.asarray(lengths, np.float64) / train_length, 1.0)
