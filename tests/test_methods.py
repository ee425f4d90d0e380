"""Names of methods: their scalings, labels, and the arguments of the harness's model."""

from __future__ import annotations

import math
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi.evaluation.comparing.plan import DEFAULT_METHODS
from ntk_alibi.methods import model_arguments, named_method, parse_method


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("original", None),
        ("ntk:4", na.NTK(4.0)),
        ("dynamic-ntk:2", na.DynamicNTK(2.0, 9)),
        ("dynamic-interpolation:1", na.DynamicInterpolation(1.0, 9)),
        ("dynamic-ntk:2:query", na.DynamicNTK(2.0, 9, per="query")),
        ("flat:8", na.FlatHeads(8.0)),
        ("flat:8:0.5", na.FlatHeads(8.0, 0.5)),
        ("dynamic-flat:2", na.DynamicFlatHeads(2.0, 9)),
        ("dynamic-flat:2:0.5:sequence", na.DynamicFlatHeads(2.0, 9, 0.5, per="sequence")),
        ("max-bias:4", na.MaxBias(4.0)),
        ("knee:1024:28", na.Knee(1024, 28.0)),
        ("knee:1024:inf", na.Knee(1024, math.inf)),
    ],
)
def test_a_name_stands_for_a_scaling(name: str, scaling: Any) -> None:
    assert parse_method(name, 9).scaling == scaling


def test_labels_and_names_of_methods() -> None:
    assert parse_method("interpolation:1.5", 100).label == "interpolation a=1.5"
    assert parse_method("knee:1024:28", 9).label == "knee w=1024, G=28"
    assert [parse_method(name, 2).name for name in DEFAULT_METHODS] == list(DEFAULT_METHODS)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("original", "scaling=original"),
        ("dynamic-ntk:1:query", "scaling=dynamic-ntk,factor=1,per=query"),
        ("flat:8:0.5", "scaling=flat,factor=8,share=0.5"),
        ("dynamic-flat:2:0.5:sequence", "scaling=dynamic-flat,factor=2,share=0.5,per=sequence"),
        ("knee:1024:28", "scaling=knee,start=1024,factor=28"),
    ],
)
def test_arguments_of_the_harness_stand_for_a_name(name: str, arguments: str) -> None:
    assert model_arguments(name) == arguments


def test_arguments_of_the_harness_become_a_method() -> None:
    assert named_method("ntk", 4, None, 9) == parse_method("ntk:4", 9)
    assert named_method("flat", 8, None, 9, 0.5) == parse_method("flat:8:0.5", 9)
    for factor in (28, 0.1, math.inf):
        named = named_method("knee", factor, None, 9, start=1024)
        assert named.scaling == na.Knee(1024, factor)
        assert parse_method(named.name, 9) == named


@pytest.mark.parametrize("name", ["ntk", "original:2", "yarn:2", "ntk:four", ":2", ""])
def test_parse_method_says_what_it_knows(name: str) -> None:
    with pytest.raises(ValueError, match="method must be original or one of interpolation:FACTOR"):
        parse_method(name, 100)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flat:8:layers=a", "layers in 'flat:8:layers=a' must be numbers such as 0.2, got 'a'"),
        ("ntk:4:layers=1:layers=2", "must be logn=0.5 or ssmax=0.5, got 'layers=2'"),
        ("ntk:4:query", "must be layers=0.2, logn=0.5 or ssmax=0.5, got 'query'"),
        ("ntk:4:logn=1:ssmax=1", "must name one of logn and ssmax once, got 2"),
        ("original:layers=1", "method must be original or one of"),
    ],
)
def test_options_of_methods_say_what_they_know(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(name, 2048)
    with pytest.raises(TypeError, match="the name of a method must be a string, got 5"):
        parse_method(5, 2048)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "knee:1024", "knee:1024:28:0.5", "knee:a:2", "flat:8:a", "flat:8:0.5:query", "flat:8:2",
        "max-bias:4:1", "dynamic-flat:2:x",
    ],
)  # fmt: skip
def test_wrong_numbers_and_options_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_method(name, 9)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="start must be an integer, got"):
        parse_method("knee:1.5:2", 9)
    with pytest.raises(TypeError, match="the name of a method must be a string, got 5"):
        parse_method(5, 2048)  # type: ignore[arg-type]
