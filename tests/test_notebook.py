"""Tests of HTML representations: well-formed, with the right values, for every object."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi.inspection import notebook

OBJECTS: list[Any] = [
    na.ALiBi(1),
    na.ALiBi(16, na.NTK(4.0)),
    na.ALiBi(112),
    na.ALiBi(6, sides="halves"),
    na.ALiBi(3, sides="symmetric"),
    na.ALiBi(4, na.DynamicNTK(train_length=512, per="query")),
    na.ALiBi(2, slopes=torch.zeros(2, requires_grad=True)),
    na.ALiBi(2, slopes=(np.ones((3, 2, 5)), np.full((3, 2), np.inf)), sides="two_slopes"),
    na.ALiBi(2, slopes=-np.ones(2, np.float32)),
    na.DistanceTable(np.zeros((2, 100))),
    na.DistanceTable(np.array([[-np.inf] * 5, [0.0, -1.0, -np.inf, -2.0, -3.0]]), begin=-2),
    na.NTK(1.0),
    na.Interpolation(8.0),
    na.DynamicNTK(),
    na.DynamicInterpolation(2.0, 512, per="query"),
]


@pytest.mark.parametrize("thing", OBJECTS, ids=str)
def test_objects_are_shown_as_a_picture_and_a_table(thing: Any) -> None:
    shown = thing._repr_html_()
    page = ElementTree.fromstring(shown)  # HTML that is also well-formed XML
    assert page.find("code").text == repr(thing)  # type: ignore[union-attr]
    picture = page.find("{http://www.w3.org/2000/svg}svg")
    assert picture is not None
    coordinates = re.findall(r'[ "MVH]-?([\d.]+)', " ".join(str(e.attrib) for e in picture.iter()))
    assert max(map(float, coordinates)) <= notebook.WIDTH
    assert "nan" not in shown
    rows = page.findall("details/table/tbody/tr")
    assert len(rows) == getattr(thing, "num_heads", notebook.EXAMPLE_HEADS)


def cells(thing: Any) -> list[list[str]]:
    rows = ElementTree.fromstring(thing._repr_html_()).findall("details/table/tbody/tr")
    return [[str(cell.text) for cell in row] for row in rows]


def test_a_bias_shows_slopes_and_reach() -> None:
    assert cells(na.ALiBi(4))[1] == ["2", "0.0625", "16.0", "73.7"]  # 16, 16 ln 100
    assert cells(na.ALiBi(4, na.DynamicNTK(2.0, 64)))[-1] == ["4", "0.001953", "512", "2358"]
    assert cells(na.ALiBi(2, sides="halves"))[0] == ["1", "0.003906", "256", "1179", "hidden",
                                                     "0.0", "0.0"]  # fmt: skip
    assert cells(na.ALiBi(1, slopes=np.zeros(1)))[0][2:] == ["> 65535", "> 65535"]


def test_a_table_is_shown_over_its_own_distances() -> None:
    table = -np.arange(20.0)[None] * np.array([[0.5], [0.1], [0.01]])
    assert cells(na.DistanceTable(table)) == [
        ["1", "0.5", "2.0", "9.2"],  # 2, 2 ln 100
        ["2", "0.1", "10.0", "> 19"],
        ["3", "0.01", "> 19", "> 19"],
    ]
    two_sided = na.DistanceTable(np.concatenate([table[:, 10:0:-1], table], axis=1), begin=-10)
    assert [row[-1] for row in cells(two_sided)] == ["9.2", "> 10", "> 10"]


@pytest.mark.parametrize("begin", [1, -100, -99])
def test_a_table_that_does_not_hold_the_nearest_keys_has_no_picture(begin: int) -> None:
    assert na.DistanceTable(np.zeros((2, 100)), begin=begin)._repr_html_() is None


def test_a_scaling_shows_slopes_of_a_model() -> None:
    plain, scaled = na.alibi_slopes(16), na.alibi_slopes(16, na.NTK(4.0))
    expected = [
        [f"{h}", f"{p:.4g}", f"{s:.4g}"]
        for h, p, s in zip(range(1, 17), plain, scaled, strict=True)
    ]
    assert cells(na.NTK(4.0)) == expected
    dynamic = cells(na.DynamicNTK(1.0, 512))
    assert [row[:2] + row[3:] for row in dynamic] == expected
    assert [row[1] for row in dynamic] == [
        row[2] for row in dynamic
    ]  # the factor is 1 at 512 tokens


def test_a_scaling_without_a_training_length_shows_multiples_of_it() -> None:
    shown = na.DynamicNTK()._repr_html_()
    header = [cell.text for cell in ElementTree.fromstring(shown).findall("details/table/*/tr/th")]
    assert header == ["head", "plain", "at the training length", "at 4 training lengths"]
    assert cells(na.DynamicNTK()) == cells(na.DynamicNTK(train_length=512))
    assert na.ALiBi(4, na.DynamicNTK())._repr_html_() is None


def test_jupyter_takes_it() -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    data, _ = formatters.DisplayFormatter().format(na.NTK(4.0))
    assert data["text/html"].startswith("<div>")
    assert data["text/plain"] == "NTK(factor=4.0)"


def test_without_numbers_there_is_no_picture() -> None:
    assert na.ALiBi(2, slopes=torch.ones(2, device="meta"))._repr_html_() is None


def test_tables_are_escaped() -> None:
    shown = notebook.table_html(["a < b"], [["x & y"]])
    assert ElementTree.fromstring(shown).findtext("thead/tr/th") == "a < b"
    assert ElementTree.fromstring(shown).findtext("tbody/tr/td") == "x & y"
