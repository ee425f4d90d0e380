"""BibTeX: each method cites the papers that its docstring names, each reference stands once."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi import citation
from repository import ROOT

BIB = (ROOT / "src/ntk_alibi/references.bib").read_text("utf-8")


def keys(text: str) -> list[str]:
    return re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)


def test_each_reference_stands_once_and_is_whole() -> None:
    assert len(keys(BIB)) == BIB.count("@") == len(set(keys(BIB)))
    marks = [citation.mark_of(entry) for entry in citation.references()]
    assert len(set(marks)) == len(marks)
    for entry in citation.references():
        assert entry.count("{") == entry.count("}")
        for field in ("author", "title", "year"):
            assert f"  {field} = {{" in entry


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        ([], []),
        ([na.ALiBi], ["press2022alibi"]),
        ([na.ALiBi(4), na.ALiBi], ["press2022alibi"]),
        ([na.KerpleLog, na.Sandwich], ["chi2022kerple", "chi2022sandwich"]),
        ([na.FlatHeads(2.0)], []),  # this package's own
        ([na.attention], ["dao2022flashattention"]),
        (["ntk:4:logn=0.5"], ["press2022alibi", "keezen2023ntkalibi", "su2021entropy",
                              "nakanishi2025ssmax"]),
        (["original"], ["press2022alibi"]),
    ],
)  # fmt: skip
def test_things_cite_their_papers(things: list[Any], expected: list[str]) -> None:
    assert keys(na.cite(*things)) == ["ntk_alibi", *expected]


def test_all_numbers_of_public_docstrings_are_in_the_references() -> None:
    for name in na.__all__:
        thing = getattr(na, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            for number in re.findall(r"Source:.*", inspect.getdoc(thing) or "", re.DOTALL):
                for cited in re.findall(r"\b\d{4}\.\d{5}\b", number):
                    assert cited in na.cite(thing), (name, cited)


def test_the_packages_entry_is_that_of_citation_cff() -> None:
    cff = (ROOT / "CITATION.cff").read_text()
    assert f"version: {na.__version__}\n" in cff
    for line in ("title: ntk_alibi\n", f"abstract: {na.__doc__}\n"):
        assert line in cff
    name = re.search(r"- name: (.*)", cff)
    assert name is not None
    assert f"author = {{{{{name[1]}}}}}" in na.cite()


@pytest.mark.parametrize(
    ("thing", "error", "message"),
    [
        (3, TypeError, "things must be of ntk_alibi, or names of methods, got 3"),
        (dict, TypeError, "things must be of ntk_alibi"),
        ("nkt:4", ValueError, "method must be original or one of"),
    ],
)
def test_mistakes_are_named(thing: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        na.cite(thing)
