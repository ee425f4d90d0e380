"""The methods that evaluations compare, by the names that tables and the command line use."""

from __future__ import annotations

from dataclasses import dataclass

from ntk_alibi import _checks
from ntk_alibi.evaluation import checks
from ntk_alibi.scaling import NTK, DynamicInterpolation, DynamicNTK, Interpolation, Scaling

#: The method that changes nothing.
ORIGINAL = "original"

#: What stands before the number in tables, and the scaling: with a factor, or with a rate, the
#: training length and what each length is taken of.
STATIC = {"interpolation": ("interpolation a", Interpolation), "ntk": ("NTK a", NTK)}
DYNAMIC = {
    "dynamic-interpolation": ("dynamic interpolation a0", DynamicInterpolation),
    "dynamic-ntk": ("dynamic NTK a0", DynamicNTK),
}
KINDS = (*STATIC, *DYNAMIC)

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
    """The method of a name such as "original", "interpolation:2", "ntk:4" or "dynamic-ntk:1:query".

    The number is the factor a, for the dynamic methods the rate a0. They may end in what a length
    is taken of, "sequence" (as published) or "query".

    Raises:
        ValueError: the kind is unknown, or the number is missing or out of range.
    """
    if name == ORIGINAL:
        return Method(name, name, None)
    kind, _, rest = name.partition(":")
    number, _, per = rest.partition(":")
    value = checks.method_number(name, kind, number, KINDS)
    if kind in DYNAMIC:
        label, dynamic = DYNAMIC[kind]
        scaling: Scaling = dynamic(value, train_length, per=per or "sequence")  # type: ignore[arg-type]
    else:
        _checks.choice(f"what follows the number in {name!r}", per, ("",))
        label, static = STATIC[kind]
        scaling = static(value)
    return Method(name, f"{label}={value:g}" + (f", per {per}" if per else ""), scaling)


def named_method(kind: str, factor: float | None, per: str | None, train_length: int) -> Method:
    """The method of a kind and its number, of which the name may already hold the latter."""
    parts = [kind, *([] if factor is None else [f"{factor:g}"]), *([] if per is None else [per])]
    return parse_method(":".join(parts), train_length)


def model_arguments(name: str) -> str:
    """A method as `--model_args` of lm-evaluation-harness."""
    kind, _, rest = name.partition(":")
    number, _, per = rest.partition(":")
    parts = (("scaling", kind), ("factor", number), ("per", per))
    return ",".join(f"{key}={value}" for key, value in parts if value)
