"""Numbers with their intervals, as all tables and sentences show them."""

from __future__ import annotations

from dataclasses import dataclass

#: Digits behind those asked for that a narrow interval may get.
MORE_DIGITS = 2


@dataclass(frozen=True)
class Cell:
    """A number with its interval: two ends, as in "71 (51–90)", or a half-width, "+18 ± 5".

    Attributes:
        value: the number.
        low, high: the ends of its interval, or "".
        half_width: half the width of its interval, or "".
    """

    value: str
    low: str = ""
    high: str = ""
    half_width: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.interval}".rstrip()

    @property
    def interval(self) -> str:
        """The interval alone, or ""."""
        ends = f"({self.low}–{self.high})" if self.low else ""
        return f"± {self.half_width}" if self.half_width else ends

    def parts(self, name: str) -> dict[str, str]:
        """Return the numbers by the names of the columns that they have in CSV."""
        named = {"low": self.low, "high": self.high, "half-width": self.half_width}
        return {name: self.value, **{f"{name}, {k}": v for k, v in named.items() if v}}


def with_ends(value: float, low: float, high: float, digits: int = 0, unit: str = "") -> Cell:
    """Return a number with the ends of its interval; without them if they are NaN.

    All have one or two digits more if the ends need them to differ. Ends that are nearer are not
    shown. The unit, such as " %", stands behind the number.
    """
    for shown in range(digits, digits + MORE_DIGITS + 1):
        number, *ends = (_rounded(x, shown) for x in (value, low, high))
        if ends[0] != ends[1]:
            return Cell(number + unit, *ends)
    return Cell(_rounded(value, digits) + unit)


def with_half_width(value: float, half_width: float, digits: int, sign: str = "+") -> Cell:
    """Return a number with half the width of its interval.

    Both have one or two digits more if the half-width needs them to be seen. A smaller one is not
    shown, nor one that is NaN: a single number, or several equal ones, do not tell how others
    spread.
    """
    if not half_width > 0.5 * 10.0 ** -(digits + MORE_DIGITS):
        return Cell(_rounded(value, digits, sign))
    while float(f"{half_width:.{digits}f}") == 0:
        digits += 1
    return Cell(_rounded(value, digits, sign), half_width=f"{half_width:.{digits}f}")


def _rounded(value: float, digits: int, sign: str = "") -> str:
    """Format a number, and one that is rounded to zero without a minus sign."""
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"
