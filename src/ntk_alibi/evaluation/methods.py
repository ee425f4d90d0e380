"""The methods that evaluations compare, by the names that tables and the command line use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ntk_alibi.scaling import NTK, DynamicInterpolation, DynamicNTK, Interpolation, Scaling

#: What stands before the number in tables, and how the number and the training length make a
#: scaling.
KINDS: dict[str, tuple[str, Callable[[float, int], Scaling]]] = {
    "interpolation": ("interpolation a", lambda factor, _: Interpolation(factor)),
    "ntk": ("NTK a", lambda factor, _: NTK(factor)),
    "dynamic-interpolation": ("dynamic interpolation a0", DynamicInterpolation),
    "dynamic-ntk": ("dynamic NTK a0", DynamicNTK),
}

DEFAULT_METHODS = (
    "original",
    "interpolation:2",
    "interpolation:4",
    "ntk:2",
    "ntk:4",
    "dynamic-ntk:1",
    "dynamic-ntk:2",
)


@dataclass(frozen=True)
class Method:
    """A scaling with a name.

    Attributes:
        name: as on the command line, "ntk:4".
        label: as in tables, "NTK a=4".
        scaling: None for the original.
    """

    name: str
    label: str
    scaling: Scaling | None


def parse_method(name: str, train_length: int) -> Method:
    """The method of a name such as "original", "interpolation:2", "ntk:4" or "dynamic-ntk:1".

    The number is the factor a, for the dynamic methods the rate a0.

    Raises:
        ValueError: the kind is unknown, or the number is missing or out of range.
    """
    if name == "original":
        return Method(name, name, None)
    kind, _, number = name.partition(":")
    try:
        label, make = KINDS[kind]
        value = float(number)
    except (KeyError, ValueError):
        kinds = ", ".join(f"{kind}:NUMBER" for kind in KINDS)
        raise ValueError(f"method must be original or one of {kinds}, got {name!r}") from None
    return Method(name, f"{label}={value:g}", make(value, train_length))
