"""Figures with their intervals, as all tables and sentences show them."""

from __future__ import annotations

import math

#: How many more digits a narrow interval may get.
MORE_DIGITS = 2


def with_ends(value: float, low: float, high: float, digits: int = 0, unit: str = "") -> str:
    """Return a value with the ends of its interval, as in "71 (51–90)"; "" for NaN.

    All get one or two more digits if the ends need them to differ. Ends that are nearer, or NaN,
    are not shown. The unit, such as " %", follows the value.
    """
    for shown in range(digits, digits + MORE_DIGITS + 1):
        middle, first, last = (_rounded(x, shown) for x in (value, low, high))
        if first != last:
            return f"{middle}{unit} ({first}–{last})"
    return "" if math.isnan(value) else f"{_rounded(value, digits)}{unit}"


def with_half_width(value: float, half_width: float, digits: int, sign: str = "+") -> str:
    """Return a value with half the width of its interval, as in "+18 ± 5".

    Both get one or two more digits if the half-width needs them to be seen. A smaller one is not
    shown, nor NaN: one observation, or several equal ones, do not tell how others spread.
    """
    if not half_width > 0.5 * 10.0 ** -(digits + MORE_DIGITS):
        return _rounded(value, digits, sign)
    while float(f"{half_width:.{digits}f}") == 0:
        digits += 1
    return f"{_rounded(value, digits, sign)} ± {half_width:.{digits}f}"


def _rounded(value: float, digits: int, sign: str = "") -> str:
    """Format a value; zero has no minus sign."""
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"
