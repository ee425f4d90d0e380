"""Methods that evaluations compare, and their names in tables and on the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.evaluation import checks
from ntk_alibi.scaling import (
    NTK,
    DynamicFlatHeads,
    DynamicInterpolation,
    DynamicNTK,
    FlatHeads,
    Interpolation,
    MaxBias,
    Scaling,
)

#: Name of the unchanged model.
ORIGINAL = "original"

#: For each kind: the label before the number in tables, and the scaling. Static scalings take a
#: factor; dynamic scalings take a rate, the training length and `per`; those of flat heads a share.
STATIC: dict[str, tuple[str, Any]] = {
    "interpolation": ("interpolation a", Interpolation),
    "ntk": ("NTK a", NTK),
    "flat": ("flat heads a", FlatHeads),
    "max-bias": ("max bias a", MaxBias),
}
DYNAMIC: dict[str, tuple[str, Any]] = {
    "dynamic-interpolation": ("dynamic interpolation a0", DynamicInterpolation),
    "dynamic-ntk": ("dynamic NTK a0", DynamicNTK),
    "dynamic-flat": ("dynamic flat heads a0", DynamicFlatHeads),
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
    """Parse a method's name: "original", "ntk:4", "flat:8:0.5" or "dynamic-ntk:1:query".

    The first number is the factor a, or the rate a0 of a dynamic method. The share of flat heads
    may follow. The name of a dynamic method may end in "sequence" (as published) or "query": the
    unit whose length selects the factor.

    Raises:
        ValueError: the kind is unknown, a number is missing or out of range, or the ending is
            unknown.
    """
    if name == ORIGINAL:
        return Method(name, name, None)
    kind, _, rest = name.partition(":")
    number, *words = rest.split(":")
    value = checks.method_number(name, kind, number, KINDS)
    label, scaling = {**STATIC, **DYNAMIC}[kind]
    text, options = f"{label}={value:g}", _options(name, words, scaling)
    if "share" in options:
        text += f", {100 * options['share']:g} % of the heads"
    if "per" in options:
        text += f", per {options['per']}"
    numbers = (value, train_length) if kind in DYNAMIC else (value,)
    return Method(name, text, scaling(*numbers, **options))


def _options(name: str, words: list[str], scaling: Any) -> dict[str, Any]:
    """Return what follows the first number of a method's name, by the scaling's parameters."""
    options: dict[str, Any] = {}
    names = [field.name for field in fields(scaling)]
    for word in words:
        if "share" in names and not options and word not in ("sequence", "query"):
            options["share"] = checks.method_share(name, word)
        elif "per" in names and "per" not in options:
            options["per"] = word
        else:
            _checks.choice(f"what follows the number in {name!r}", word, ("",))
    return options


def named_method(
    kind: str,
    factor: float | None,
    per: str | None,
    train_length: int,
    share: float | None = None,
) -> Method:
    """Return the method of a kind and its numbers; kind may already contain the others."""
    numbers = {"factor": factor, "share": share}
    texts = {
        name: None if number is None else f"{_checks.finite(name, number):g}"
        for name, number in numbers.items()
    }
    parts = [str(part) for part in (kind, texts["factor"], texts["share"], per) if part is not None]
    return parse_method(":".join(parts), train_length)


def model_arguments(name: str) -> str:
    """Format a method's name as `--model_args` of lm-evaluation-harness."""
    kind, *words = name.split(":")
    named = {"scaling": kind}
    for word in words:
        of_per = word in ("sequence", "query")
        named["per" if of_per else "share" if "factor" in named else "factor"] = word
    return ",".join(f"{key}={value}" for key, value in named.items())
