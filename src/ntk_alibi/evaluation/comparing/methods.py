"""Methods that evaluations compare, and their names in tables and on the command line."""

from __future__ import annotations

from dataclasses import dataclass

from ntk_alibi import _checks
from ntk_alibi.evaluation import checks
from ntk_alibi.scaling import NTK, DynamicInterpolation, DynamicNTK, Interpolation, Scaling

#: Name of the unchanged model.
ORIGINAL = "original"

#: For each kind: the label before the number in tables, and the scaling. Static scalings take a
#: factor; dynamic scalings take a rate, the training length and `per`.
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
    """A scaling with its name and label.

    Attributes:
        name: name on the command line, such as "ntk:4".
        label: label in tables, such as "NTK a=4".
        scaling: the scaling to patch with; None for the original.
    """

    name: str
    label: str
    scaling: Scaling | None


def parse_method(name: str, train_length: int) -> Method:
    """Parse a method's name: "original", "interpolation:2", "ntk:4" or "dynamic-ntk:1:query".

    The number is the factor a, or the rate a0 of a dynamic method. The name of a dynamic method may
    end in "sequence" (as published) or "query": the unit whose length selects the factor.

    Raises:
        ValueError: the kind is unknown, the number is missing or out of range, or the ending is
            unknown.
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
    """Return the method of a kind, factor and per; kind may already contain the other two."""
    number = None if factor is None else f"{_checks.finite('factor', factor):g}"
    parts = [str(part) for part in (kind, number, per) if part is not None]
    return parse_method(":".join(parts), train_length)


def model_arguments(name: str) -> str:
    """Format a method's name as `--model_args` of lm-evaluation-harness."""
    kind, _, rest = name.partition(":")
    number, _, per = rest.partition(":")
    parts = (("scaling", kind), ("factor", number), ("per", per))
    return ",".join(f"{key}={value}" for key, value in parts if value)
