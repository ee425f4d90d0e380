"""Tests of what `test_images` cannot see in pictures: texts, themes, arguments, many cells."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

import ntk_alibi as na
from attention_checks import pair_mask
from ntk_alibi import plots
from ntk_alibi.methods import parse_method
from ntk_alibi.plots.labels import labelled
from ntk_alibi.plots.style import KINDS, THEMES, line_styles, theme_of
from pictures import PICTURES, luminance, summary


def test_the_theme_follows_the_axes() -> None:
    assert theme_of(Figure().add_subplot()) is THEMES["light"]
    assert theme_of(Figure(facecolor="black").add_subplot(facecolor="none")) is THEMES["dark"]
    with plots.style("dark"):
        assert theme_of(Figure().add_subplot()) is THEMES["dark"]
    with plt.style.context("dark_background"):
        assert theme_of(plots.slopes(4)) is THEMES["dark"]
    with plots.style("light"):
        assert theme_of(plots.slopes(4)) is THEMES["light"]
    assert theme_of(plots.slopes(4)) is THEMES["transparent"]


def test_pictures_without_a_theme_show_the_ground_of_their_page() -> None:
    """JupyterLab puts a ground behind figures whose tick labels are all light or all dark."""
    inline = pytest.importorskip("matplotlib_inline.backend_inline")
    for figure in [plots.slopes(4).figure, plots.bias_maps(na.ALiBi(2)).figure,
                   plots.study_figure(summary())]:  # fmt: skip
        assert figure.get_facecolor()[3] == 0
        assert all(axes.get_facecolor()[3] == 0 for axes in figure.axes if axes.axison)
        figure.canvas.draw()  # after the style's block, as notebooks do
        assert inline._fetch_figure_metadata(figure) is None


@pytest.mark.parametrize("name", ["ntk:4", "flat:8", "dynamic-ntk", "max-bias:2"])
def test_a_scaling_has_its_name_in_pictures(name: str) -> None:
    scaling = parse_method(name, 2048).scaling
    assert labelled([scaling]) == {name: scaling}
    assert list(labelled(na.ALiBi(8, scaling))) == [f"ALiBi(8, {name})"]


class Table:
    """A bias object: anything with `num_heads` and `tensor`."""

    num_heads = 2

    def tensor(self, query_length: int, key_length: int) -> torch.Tensor:
        entries = torch.arange(2 * query_length * key_length, dtype=torch.float32)
        return -entries.reshape(1, 2, query_length, key_length)


@pytest.mark.parametrize("quantity", ["bias", "weight"])
def test_bias_maps_show_all_heads(quantity: Any) -> None:
    bias = na.ALiBi(6, sides="halves")
    axes = plots.bias_maps(bias, 5, 7, heads=[1, 2, 6], quantity=quantity)
    assert [text.get_text() for text in axes.texts] == ["head 1", "head 2", "head 6"]
    sheet = np.asarray(axes.images[0].get_array().filled(np.nan))
    dense = bias.tensor(5, 7)[0][[0, 1, 5]]
    for text, head in zip(axes.texts, dense, strict=True):
        x, y = text.get_position()
        left, top = round(x - 3), round(y + 0.6)
        shown = head if quantity == "bias" else np.exp(head)
        cells = sheet[top : top + 5, left : left + 7]
        np.testing.assert_allclose(cells, np.where(np.isinf(head), np.nan, shown), rtol=1e-6)
        grey = np.asarray(axes.images[1].get_array())[top : top + 5, left : left + 7, 3]
        np.testing.assert_array_equal(grey > 0, np.isinf(head))


def test_any_bias_object_is_drawn() -> None:
    plots.bias_maps(Table(), 4)
    axes = plots.bias_by_distance(Table(), 4)
    assert np.asarray(axes.get_lines()[1].get_ydata()).tolist() == [-7.0, -6.0, -5.0, -4.0]
    flat = plots.bias_maps(na.ALiBi(2, slopes=np.zeros(2)), 4)  # must not take the logarithm of 0
    flat.figure.canvas.draw()


def test_blocks_of_a_mask_are_what_the_kernel_skips() -> None:
    mask = pair_mask("documents", (2, 3, 640, 640), 1)
    axes = plots.block_mask(na.BlockMask(torch.from_numpy(mask)), batch=1, head=3)
    states = np.asarray(axes.get_images()[0].get_array())
    blocks = mask[1, 2].reshape(10, 64, 10, 64)
    np.testing.assert_array_equal(states > 0, blocks.any((1, 3)))
    np.testing.assert_array_equal(states == 2, blocks.all((1, 3)))
    drawn = plots.mask(12, mask=mask[:1, :1, :12, :12]).get_images()[0].get_array()
    np.testing.assert_array_equal(
        np.asarray(drawn) > 0, mask[0, 0, :12, :12] & np.tri(12, dtype=bool)
    )


def test_blocks_are_what_the_kernel_counted() -> None:
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 4, 1024, 16), np.float32)
    counted = na.attention(query, key, value, na.ALiBi(4), return_stats=True)[1]
    axes = plots.blocks(counted, batch=1)
    read, skipped = axes.containers
    assert isinstance(read, BarContainer)
    assert isinstance(skipped, BarContainer)
    heights = np.array([bar.get_height() for bar in read])
    np.testing.assert_allclose(heights, 100 * counted.visited[1] / counted.visible[1])
    assert heights[0] < 50 < heights[-1]
    tops = [bar.get_y() + bar.get_height() for bar in skipped]
    np.testing.assert_allclose(tops, 100)


def test_a_backend_that_turns_interactive_mode_on_leaves_it_on(tmp_path: Path) -> None:
    backend = "from matplotlib.backends.backend_agg import *\nimport matplotlib\n"
    (tmp_path / "like_jupyter.py").write_text(backend + "matplotlib.interactive(True)\n")
    code = "import matplotlib as m, ntk_alibi as na; na.plots.slopes(2); print(m.is_interactive())"
    environment = {**os.environ, "MPLBACKEND": "module://like_jupyter", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "True\n", done.stderr


def test_without_matplotlib_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name}", name="matplotlib")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for draw in PICTURES.values():
        with pytest.raises(ImportError, match=r'pip install "ntk-alibi\[plot\]"'):
            draw()
    with pytest.raises(ImportError, match="a picture needs matplotlib"):
        plots.study_figure(summary())


def test_maps_of_long_texts_show_every_nth_query_and_key() -> None:
    bias = na.ALiBi(2)
    ax = plots.bias_maps(bias, 3000, heads=[2])
    (image,) = (i for i in ax.get_images() if i.get_array().ndim == 2)
    shown = image.get_array()
    map_of_head = shown[-1500:, :1500]
    expected = bias.tensor(3000, 3000)[0, 1][1::2, 1::2]
    np.testing.assert_array_equal(np.tril(map_of_head.filled(0)), np.tril(expected))


def test_lines_are_told_apart_without_colours() -> None:
    axes = Figure().add_subplot()
    looks = line_styles(axes, ["original", *KINDS, "Kerple", "Sandwich", "other"])
    assert len({(look["marker"], look["linestyle"]) for look in looks}) == 4 + len(KINDS)
    assert len({look["color"] for look in looks[: 2 + len(KINDS)]}) == 2 + len(KINDS)
    many = line_styles(axes, [f"peer {number}" for number in range(20)])
    assert len({(look["marker"], look["linestyle"], look["color"]) for look in many}) == 20
    same = line_styles(axes, ["dynamic-flat", "original", "dynamic-flat"])[::2]
    pale, strong = (luminance(look["color"]) for look in same)
    assert pale > strong + 0.1
    assert len({look["marker"] for look in same}) == 2


def test_objects_of_one_label_keep_their_curves() -> None:
    scalings = [na.DynamicNTK(2.0, 512), na.DynamicNTK(2.0, 1024)]
    assert list(labelled(scalings).values()) == scalings


def test_titles_say_at_which_length_a_dynamic_method_is_drawn() -> None:
    dynamic = na.DynamicNTK(2.0, 512)
    assert plots.slopes(8, dynamic).get_title().endswith("dynamic ones at 512 tokens")
    given = plots.slopes(8, [None, dynamic], length=1024)
    assert given.get_title().endswith("dynamic ones at 1024 tokens")
    assert "dynamic" not in plots.slopes(8, [None, na.NTK(4.0)], length=1024).get_title()
