"""Methods that evaluations compare, and their names in tables and on the command line."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
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
    Knee,
    MaxBias,
    Scaling,
)

#: Name of the unchanged model.
ORIGINAL = "original"

#: For each kind: the label in tables, and the scaling. Static scalings take a factor, a knee its
#: start before that; dynamic scalings take a rate, the training length and `per`; those of flat
#: heads a share.
STATIC: dict[str, tuple[str, Any]] = {
    "interpolation": ("interpolation a={factor:g}", Interpolation),
    "ntk": ("NTK a={factor:g}", NTK),
    "flat": ("flat heads a={factor:g}", FlatHeads),
    "max-bias": ("max bias a={factor:g}", MaxBias),
    "knee": ("knee w={start:g}, G={factor:g}", Knee),
}
DYNAMIC: dict[str, tuple[str, Any]] = {
    "dynamic-interpolation": ("dynamic interpolation a0={rate:g}", DynamicInterpolation),
    "dynamic-ntk": ("dynamic NTK a0={rate:g}", DynamicNTK),
    "dynamic-flat": ("dynamic flat heads a0={rate:g}", DynamicFlatHeads),
}
_KINDS = {**STATIC, **DYNAMIC}

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
    """Parse a method's name, such as "original", "ntk:4", "flat:8:0.5" or "dynamic-ntk:1:query".

    The first number is the factor a, or the rate a0 of a dynamic method; a knee has its start and
    its factor, "knee:1024:28". The share of flat heads may follow. The name of a dynamic method may
    end in "sequence" (as published) or "query": the unit whose length selects the factor.

    Raises:
        TypeError, ValueError: the kind is unknown, a number is missing, out of range or of the
            wrong kind, or the ending is unknown.
    """
    if name == ORIGINAL:
        return Method(name, name, None)
    kind, *words = name.split(":")
    forms = {kind: ":NUMBER" * len(number_names(kind)) for kind in _KINDS}
    numbers = checks.method_numbers(name, kind, words, forms)
    label, scaling = _KINDS[kind]
    options = _options(name, words[len(numbers) :], scaling)
    text = label.format(**dict(zip(number_names(kind), numbers, strict=True)))
    if "share" in options:
        text += f", {100 * options['share']:g} % of the heads"
    if "per" in options:
        text += f", per {options['per']}"
    lengths = [train_length] if kind in DYNAMIC else []
    return Method(name, text, scaling(*numbers, *lengths, **options))


def number_names(kind: str) -> tuple[str, ...]:
    """Return the names of the numbers that a kind of method needs, in their order."""
    if kind in DYNAMIC:
        return ("rate",)
    return tuple(field.name for field in fields(STATIC[kind][1]) if field.default is MISSING)


def _options(name: str, words: list[str], scaling: Any) -> dict[str, Any]:
    """Return what follows the numbers in a method's name, by the scaling's parameters."""
    options: dict[str, Any] = {}
    names = [field.name for field in fields(scaling)]
    for word in words:
        if "share" in names and not options and word not in ("sequence", "query"):
            options["share"] = checks.method_share(name, word)
        elif "per" in names and "per" not in options:
            options["per"] = word
        else:
            _checks.choice(f"what follows the numbers in {name!r}", word, ("",))
    return options


def named_method(
    kind: str,
    factor: float | None,
    per: str | None,
    train_length: int,
    share: float | None = None,
    start: int | None = None,
) -> Method:
    """Return the method of a kind and its numbers; kind may already contain the others."""
    numbers = {"start": start, "factor": factor, "share": share}
    texts = [
        repr(number if number == math.inf else _checks.finite(name, number)).removesuffix(".0")
        for name, number in numbers.items()
        if number is not None
    ]
    parts = [str(kind), *texts, *([] if per is None else [per])]
    return parse_method(":".join(parts), train_length)


def model_arguments(name: str) -> str:
    """Format a method's name as `--model_args` of lm-evaluation-harness."""
    kind, *words = name.split(":")
    named = {"scaling": kind}
    names = iter((*(number_names(kind) if kind in STATIC else ("factor",)), "share"))
    for word in words:
        named["per" if word in ("sequence", "query") else next(names)] = word
    return ",".join(f"{key}={value}" for key, value in named.items())
