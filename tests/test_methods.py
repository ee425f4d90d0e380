"""Names of methods, and their scalings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi.methods import (
    DYNAMIC,
    STATIC,
    method_name,
    parse_method,
)

KINDS = ("original", *STATIC, *DYNAMIC)


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("original", None),
        ("ntk:4", na.NTK(4.0)),
        ("dynamic-ntk", na.DynamicNTK(2.0, 9)),
        ("dynamic-ntk:2", na.DynamicNTK(2.0, 9)),
        ("dynamic-ntk:1", na.DynamicNTK(1.0, 9)),
        ("dynamic-interpolation", na.DynamicInterpolation(2.0, 9)),
        ("flat:8", na.FlatHeads(8.0)),
        ("dynamic-flat", na.DynamicFlatHeads(2.0, 9)),
        ("dynamic-flat:4", na.DynamicFlatHeads(4.0, 9)),
        ("max-bias:4", na.MaxBias(4.0)),
    ],
)
def test_a_name_stands_for_a_scaling(name: str, scaling: Any) -> None:
    assert parse_method(name, 9).scaling == scaling


def variants(scaling: Any) -> Iterator[Any]:
    """Yield scalings of a class with values that need many digits, and with a training length."""
    array: dict[str, Any] = {"factor": 1 / 0.3, "rate": 1 / 3}
    known_names = {field.name for field in fields(scaling)}
    given = {name: value for name, value in array.items() if name in known_names}
    yield scaling(**given)
    if "train_length" in known_names:
        yield scaling(**given, train_length=9)


@pytest.mark.parametrize("kind", [*STATIC, *DYNAMIC])
def test_the_name_of_a_scaling_is_taken_back(kind: str) -> None:
    for scaling in variants((STATIC | DYNAMIC)[kind]):
        name = method_name(scaling)
        assert name.partition(":")[0] == kind
        length = getattr(scaling, "train_length", None)
        assert parse_method(name, length).scaling == scaling
        assert method_name(parse_method(name, length).scaling) == name


def test_the_documented_names_stand_for_the_objects_beside_them() -> None:
    page = Path(__file__).parents[1] / "docs/choose-a-method.md"
    rows = re.findall(r"^\| `([^`]+)`<br>`([^`]+)` \|", page.read_text("utf-8"), re.MULTILINE)
    made = {name: made for name, made in rows if name.partition(":")[0] in KINDS}
    assert {name.partition(":")[0] for name in made} == set(KINDS)
    for name, in_python in made.items():
        scaling = eval(in_python, {"na": na})
        assert parse_method(name, None).scaling == scaling
        assert method_name(scaling) == name


def test_every_scaling_has_a_name() -> None:
    public = [getattr(na, name) for name in na.__all__]
    scalings = {x for x in public if isinstance(x, type) and hasattr(x, "alibi_type")}
    assert scalings == set((STATIC | DYNAMIC).values())


@pytest.mark.parametrize("name", ["ntk", "original:2", "yarn:2", "ntk:four", ":2", ""])
def test_parse_method_says_what_it_knows(name: str) -> None:
    with pytest.raises(ValueError, match="method must be original or one of interpolation:FACTOR"):
        parse_method(name, 100)


def test_the_name_of_a_method_is_a_string() -> None:
    with pytest.raises(TypeError, match="the name of a method must be a string, got 5"):
        parse_method(5, 2048)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("flat:4:lgn=0.5", "logn="),
        ("dynamic-ntk:2:log_n=0.5", "logn="),
    ],
)
def test_a_misspelled_option_gets_its_spelling(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"an option in {name!r} .*: did you mean {meant}\\?$"):
        parse_method(name, 2048)


@pytest.mark.parametrize(
    "name",
    [
        "flat:8:a", "flat:8:2",
        "max-bias:4:1", "dynamic-flat:2:x", "dynamic-ntk:x", "dynamic-ntk:2:2",
        "ntk:4:logn=1:logn=1", "ntk:4:logn=x", "original:2:logn=1",
    ],
)  # fmt: skip
def test_wrong_numbers_and_options_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_method(name, 9)
