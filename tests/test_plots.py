"""What pictures show: the data of what is drawn, and one image of each against a kept one.

Kept images hold no text, whose look depends on fonts. To renew one, delete it from
`tests/baseline_images`, run this file once, look at the new one, and run it again.
"""

from __future__ import annotations

import builtins
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import transformers
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.testing.compare import compare_images
from matplotlib.text import Text

import ntk_alibi as na
from ntk_alibi import inspection, plots
from ntk_alibi.plain_attention import Stats
from ntk_alibi.plots.style import KINDS, THEMES, line_styles, theme_of

BASELINES = Path(__file__).parent / "baseline_images"

#: Root mean square over pixels, of 255. A line that is missing makes about 10: it covers one in 200
#: pixels of these small images, by half of the range or more. Smoothing of edges makes less than 1.
TOLERANCE = 3.0

METHODS = {"original": "original", "ntk:2": "NTK a=2", "ntk:4": "NTK a=4"}


@pytest.fixture(autouse=True)
def agg() -> Iterator[None]:
    """No window is opened, and no figure is left."""
    plt.switch_backend("agg")
    yield
    plt.close("all")


def summary() -> dict[str, Any]:
    retrieval, by_distance, perplexity = [], [], []
    for number, method in enumerate(METHODS):
        for multiple in (1.0, 2.0, 4.0):
            accuracy = 1.0 - 0.2 * multiple / (1 + number)
            cell = {"task": "lines", "method": method, "accuracy": accuracy, "cases": 64}
            interval = {"low": accuracy - 0.05, "high": accuracy + 0.03}
            retrieval.append({**cell, **interval, "multiple": multiple})
            by_distance.append({**cell, **interval, "begin": multiple - 1, "end": multiple})
            difference = 0.01 * number * multiple
            numbers = {"nats": 2.7 + difference, "difference": difference, "half_width": 0.005}
            perplexity.append({"method": method, "begin": multiple, "end": 2 * multiple, **numbers})
    by_distance.append({**by_distance[0], "begin": 4.0, "end": 5.0, "accuracy": None})
    return {
        "train_length": 2048,
        "methods": METHODS,
        "retrieval": retrieval,
        "by_distance": by_distance,
        "perplexity": perplexity,
    }


def stats() -> Any:
    return Stats(np.array([[1, 6, 9]]), np.array([[10, 10, 9]]))


@functools.cache
def random_model() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.BloomConfig(
            vocab_size=99, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.4
        )
        return transformers.BloomForCausalLM(config).eval()


class Letters:
    """A tokenizer that knows letters."""

    def __call__(self, text: str, return_tensors: str) -> transformers.BatchEncoding:
        assert return_tensors == "pt"
        ids = torch.tensor([[ord(letter) % 99 for letter in text]], dtype=torch.long)
        return transformers.BatchEncoding({"input_ids": ids})

    def decode(self, ids: list[int]) -> str:
        return f"<{ids[0]}>"


PICTURES: dict[str, Callable[..., Axes]] = {
    "accuracy_curves": lambda **k: plots.accuracy_curves(summary(), "lines", **k),
    "accuracy_curves_by_distance": lambda **k: plots.accuracy_curves(
        summary(), "lines", by="distance", **k
    ),
    "accuracy_map": lambda **k: plots.accuracy_map(
        [1, 2, 4], [0, 50], [[1.0, 0.5, np.nan], [0.9, 0.2, 0.0]], **k
    ),
    "alibi_rows": lambda **k: plots.alibi_rows(
        {
            form: na.precision.alibi_row(0.7, 512, "bfloat16", form)[-40:]
            for form in ("absolute", "relative")
        },
        **k,
    ),
    "attention_map": lambda **k: plots.attention_map(
        random_model(), Letters(), "letters", head=2, **k
    ),
    "benchmark_curves": lambda **k: plots.benchmark_curves(
        [128, 256, 512],
        {"theirs": [1e-3, 4e-3, None], "plain": [1e-3, 3e-3, 9e-3], "ours": [4e-4, 1e-3, 3e-3]},
        ours=["ours"],
        baseline="plain",
        limit=[2e-4, 8e-4, 3.2e-3],
        **k,
    ),
    "bias_by_distance": lambda **k: plots.bias_by_distance(
        [na.ALiBi(4), na.ALiBi(4, na.NTK(4.0))], 64, **k
    ),
    "bias_maps": lambda **k: plots.bias_maps(na.ALiBi(6), 12, 16, **k),
    "blocks": lambda **k: plots.blocks(stats(), **k),
    "exact_positions": lambda **k: plots.exact_positions(
        {
            name: {n: na.precision.exact_fraction(name, n) for n in (128, 512, 2048, 8192)}
            for name in ("bfloat16", "float16")
        },
        **k,
    ),
    "extrapolation_curves": lambda **k: plots.extrapolation_curves(
        [512, 1024, 2048],
        {"a": [2.7, 3.1, 4.0], "b": [2.7, 2.6, np.nan]},
        half_widths={"b": [0.2, 0.2, 0.2]},
        train_length=512,
        **k,
    ),
    "intervals": lambda **k: plots.intervals(24, window=6, sink=2, **k),
    "mask": lambda **k: plots.mask(12, 16, causal_block=4, **k),
    "perplexity_curves": lambda **k: plots.perplexity_curves(summary(), **k),
    "receptive_field": lambda **k: plots.receptive_field(
        [na.ALiBi(8), na.ALiBi(8, na.NTK(4.0))], longest=1024, **k
    ),
    "rounded_positions": lambda **k: plots.rounded_positions(
        {name: na.precision.last_positions(name, 1024) for name in ("bfloat16", "float32")}, **k
    ),
    "slopes": lambda **k: plots.slopes(12, [None, na.Interpolation(4.0), na.NTK(4.0)], **k),
}


def test_every_picture_is_tested() -> None:
    drawn = set(PICTURES) - {"accuracy_curves_by_distance"}
    assert drawn == set(plots.__all__) - {"depth_figure", "study_figure", "style"}


def textless(name: str, theme: str) -> Figure:
    """A small figure of a picture without anything that depends on fonts."""
    with plots.style(theme):  # type: ignore[arg-type]
        figure = Figure(figsize=(4, 3), dpi=60)
        PICTURES[name](ax=figure.add_axes((0.08, 0.08, 0.84, 0.84)))
    for artist in [*figure.findobj(Text), *figure.findobj(Legend)]:
        artist.set_visible(False)
    return figure


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", PICTURES)
def test_image(name: str, theme: str, tmp_path: Path) -> None:
    kept, found = BASELINES / f"{name}-{theme}.png", tmp_path / f"{name}.png"
    figure = textless(name, theme)
    figure.savefig(found, metadata={"Software": None})
    if not kept.exists():
        kept.write_bytes(found.read_bytes())
        pytest.fail(f"{kept} was not there and is written: look at it")
    assert compare_images(str(kept), str(found), TOLERANCE) is None


@pytest.mark.parametrize("name", PICTURES)
def test_images_differ_where_something_is_missing(name: str, tmp_path: Path) -> None:
    figure = textless(name, "light")
    axes = figure.axes[0]
    first: Any = [*axes.lines, *axes.collections, *axes.patches, *axes.images][0]
    first.remove()
    figure.savefig(tmp_path / "without.png")
    kept = str(BASELINES / f"{name}-light.png")
    assert compare_images(kept, str(tmp_path / "without.png"), TOLERANCE) is not None


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_go_where_they_are_told(name: str) -> None:
    axes = Figure().add_subplot()
    axes.set_title("mine")
    axes.set_xlabel("own")
    assert PICTURES[name](ax=axes) is axes
    assert axes.get_title() == "mine"
    assert axes.get_xlabel() == "own"
    assert plt.get_fignums() == []
    before = dict(matplotlib.rcParams)
    fresh = PICTURES[name]()
    assert plt.get_fignums() == [1]
    assert fresh.get_title()
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_text_is_legible_in_both_themes(name: str) -> None:
    for theme in THEMES:
        with plots.style(theme):  # type: ignore[arg-type]
            axes = PICTURES[name]()
        axes.figure.canvas.draw()  # late, when the style has ended
        ground = luminance(THEMES[theme].background)
        inside = set(axes.texts) if name == "accuracy_map" else set()
        for text in axes.figure.findobj(Text):
            if isinstance(text, Text) and text.get_text() and text not in inside:
                light, dark = sorted((luminance(text.get_color()), ground), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (theme, text)  # WCAG 2.1, AA
        plt.close("all")


def luminance(color: Any) -> float:
    """Relative luminance as WCAG 2.1 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_theme_follows_the_axes() -> None:
    assert theme_of(Figure().add_subplot()) is THEMES["light"]
    assert theme_of(Figure(facecolor="black").add_subplot(facecolor="none")) is THEMES["dark"]
    with plots.style("dark"):
        assert theme_of(Figure().add_subplot()) is THEMES["dark"]
    with plt.style.context("dark_background"):
        assert theme_of(plots.slopes(4)) is THEMES["dark"]


def test_lines_are_told_apart_without_colours() -> None:
    axes = Figure().add_subplot()
    looks = line_styles(axes, ["original", *KINDS, "Kerple", "Sandwich", "other"])
    assert len({(look["marker"], look["linestyle"]) for look in looks}) == 8
    assert len({look["color"] for look in looks}) == 8
    many = line_styles(axes, [f"peer {number}" for number in range(20)])
    assert len({(look["marker"], look["linestyle"], look["color"]) for look in many}) == 20
    shades = [look["color"] for look in line_styles(axes, ["ntk", "ntk", "original"])]
    assert luminance(shades[0]) > luminance(shades[1])  # fuller later


def test_slopes_are_those_of_the_package() -> None:
    scalings = {"a": None, "b": na.NTK(2.0), "c": na.DynamicNTK(2.0, 512, per="query")}
    lines = plots.slopes(12, scalings, length=1024).get_lines()
    assert [line.get_label() for line in lines] == ["a", "b", "c"]
    for line, scaling in zip(lines, (None, na.NTK(2.0), na.NTK(4.0)), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), na.alibi_slopes(12, scaling))
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 13))
    default = plots.slopes(8, na.DynamicInterpolation(4.0, 512)).get_lines()
    np.testing.assert_array_equal(default[0].get_ydata(), na.alibi_slopes(8, na.Interpolation(4.0)))
    assert default[0].get_label() == "DynamicInterpolation(4, 512)"


def test_receptive_fields_end_where_the_weight_has_fallen() -> None:
    biases = {"plain": na.ALiBi(8), "dynamic": na.ALiBi(8, na.DynamicNTK(1.0, 512))}
    axes = plots.receptive_field(biases, shares=[0.5, 0.1], longest=256, length=2048)
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    for label, bias in (("plain", na.ALiBi(8)), ("dynamic", na.ALiBi(8, na.NTK(4.0)))):
        for share, told in ((0.5, "50 %"), (0.1, "10 %")):
            reach = inspection.receptive_field(bias, share, longest=256)
            shown = np.asarray(lines[f"{label}: {told}"].get_ydata())
            np.testing.assert_array_equal(shown, np.where(np.isinf(reach), np.nan, reach))
    beyond = [line for line in axes.get_lines() if line.get_marker() == "^"]
    reach = inspection.receptive_field(na.ALiBi(8), 0.1, longest=256)
    assert np.isinf(reach).any()
    np.testing.assert_array_equal(
        np.asarray(beyond[0].get_ydata()), np.full(np.isinf(reach).sum(), 256)
    )


def test_biases_by_distance() -> None:
    axes = plots.bias_by_distance(na.ALiBi(8, sides="symmetric"), 16, heads=[2, 8], side="ahead")
    slopes = na.reference.alibi_slopes(8)
    for line, slope in zip(axes.get_lines(), slopes[[1, 7]], strict=True):
        np.testing.assert_allclose(np.asarray(line.get_ydata()), -slope * np.arange(16), rtol=1e-6)


class Table:
    """Any object with these two names is a bias."""

    num_heads = 2

    def tensor(self, query_length: int, key_length: int) -> torch.Tensor:
        numbers = torch.arange(2 * query_length * key_length, dtype=torch.float32)
        return -numbers.reshape(1, 2, query_length, key_length)


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
    flat = plots.bias_maps(na.ALiBi(2, slopes=np.zeros(2)), 4)  # no logarithm of nothing
    flat.figure.canvas.draw()


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


@pytest.mark.parametrize("scaling", [None, na.NTK(8.0)])
def test_attention_maps_are_the_models_weights(scaling: Any) -> None:
    model, text = random_model(), "in the beginning"
    with na.patch(model, scaling, attention="eager"):
        axes = plots.attention_map(model, Letters(), text, layer=0, head=4)
        inputs = Letters()(text, "pt")
        expected = model(**inputs, output_attentions=True).attentions[0][0, 3].detach().numpy()
    shown = axes.images[0].get_array()
    np.testing.assert_array_equal(shown.filled(0.0), expected)
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), ~np.tril(np.ones((16, 16), bool)))
    assert axes.get_xticklabels()[0].get_text() == f"<{ord('i') % 99}>"
    assert axes.get_title() == "Attention of layer 0, head 4"
    long = plots.attention_map(model, Letters(), "x" * 50)
    assert len(long.get_xticks()) < 50


def test_scaled_slopes_show_in_attention_maps() -> None:
    model = random_model()

    def weights() -> Any:
        return plots.attention_map(model, Letters(), "x" * 30).images[0].get_array().filled(0)

    before = weights()
    with na.patch(model, na.Interpolation(8.0)):
        assert weights()[-1, 0] > 2 * before[-1, 0]  # all tokens alike: what differs is the bias


def test_accuracies_are_in_the_cells() -> None:
    axes = PICTURES["accuracy_map"]()
    assert [text.get_text() for text in axes.texts] == ["100", "50", "90", "20", "0"]
    shown = axes.images[0].get_array()
    np.testing.assert_allclose(shown.filled(-1), [[100, 50, -1], [90, 20, 0]])
    assert axes.images[0].get_clim() == (0, 100)


def test_curves_of_a_study() -> None:
    study = summary()
    axes = plots.accuracy_curves(study, "lines")
    assert axes.get_legend_handles_labels()[1] == list(METHODS.values())
    containers: Any = axes.containers
    for container, method in zip(containers, METHODS, strict=True):
        cells = [e for e in study["retrieval"] if e["method"] == method]
        line, _, (bars,) = container
        np.testing.assert_allclose(np.asarray(line.get_xdata(), float), [1, 2, 4])
        percent = [100 * e["accuracy"] for e in cells]
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), percent)
        ends = [segment[:, 1] for segment in bars.get_segments()]
        np.testing.assert_allclose(ends, [[100 * e["low"], 100 * e["high"]] for e in cells])
    axes = plots.accuracy_curves(study, "lines", by="distance")
    shown: Any = axes.containers[0]
    np.testing.assert_allclose(np.asarray(shown[0].get_xdata(), float), [0.5, 1.5, 3.5])
    axes = plots.perplexity_curves(study)
    np.testing.assert_allclose(np.asarray(axes.get_lines()[2].get_ydata()), [0.02, 0.04, 0.08])
    band = axes.collections[2].get_paths()[0].get_extents()
    np.testing.assert_allclose((band.y0, band.y1), (0.015, 0.085))


def test_a_study_at_a_glance_has_one_legend() -> None:
    with plots.style("dark"):
        figure = plots.study_figure(summary())
    assert len(figure.axes) == 3
    assert all(axes.get_legend() is None for axes in figure.axes)
    assert [t.get_text() for t in figure.legends[0].get_texts()] == list(METHODS.values())
    assert to_rgb(figure.get_facecolor()) == to_rgb(THEMES["dark"].background)


def test_curves_of_measurements() -> None:
    axes = PICTURES["extrapolation_curves"]()
    np.testing.assert_array_equal(axes.get_lines()[1].get_ydata(), [2.7, 2.6, np.nan])
    assert axes.get_lines()[2].get_xdata()[0] == 512  # type: ignore[index]
    axes = PICTURES["benchmark_curves"]()
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.get_lines()}
    np.testing.assert_allclose(lines["theirs"], [1.0, 4.0, np.nan])
    np.testing.assert_allclose(lines["ours"], [0.4, 1.0, 3.0])
    np.testing.assert_allclose(lines["all pairs at the machine's peak"], [0.2, 0.8, 3.2])
    only = plots.benchmark_curves([1, 2], {"a": [1.0, 2.0], "b": [None, None]})
    assert [line.get_label() for line in only.get_lines()] == ["a"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plots.slopes(0), ValueError, "num_heads must be between 1"),
        (lambda: plots.slopes(8, na.NTK), TypeError, "scaling must be None or an object"),
        (lambda: plots.receptive_field(na.ALiBi(4), shares=[2]), ValueError, "share must be"),
        (lambda: plots.receptive_field(3), TypeError, "bias must be an object with num_heads"),
        (lambda: plots.bias_maps(na.ALiBi(4), heads=[5]), ValueError, "heads must be between 1 an"),
        (lambda: plots.bias_maps(na.ALiBi(4), heads=3), TypeError, "heads must be None or numbers"),
        (lambda: plots.bias_maps(na.ALiBi(4), quantity="x"), ValueError, "quantity must be one of"),
        (lambda: plots.mask(4, window=0), ValueError, "window must be between 1"),
        (lambda: plots.blocks(np.ones(3)), TypeError, "stats must come from attention"),
        (lambda: plots.blocks(stats(), batch=1), ValueError, "batch must be between 0 and 0"),
        (lambda: plots.style("sepia").__enter__(), ValueError, "theme must be one of 'light', 'd"),
        (
            lambda: plots.attention_map(random_model(), Letters(), "x", layer=2),
            ValueError,
            "layer must be between -2 and 1",
        ),
        (
            lambda: plots.attention_map(random_model(), Letters(), "x", head=0),
            ValueError,
            "heads must be between 1 and 4",
        ),
        (
            lambda: plots.attention_map(random_model(), Letters(), ""),
            ValueError,
            "number of tokens of text must be between 1",
        ),
        (
            lambda: plots.accuracy_map([1], [1, 2], [[0.5]]),
            ValueError,
            r"accuracy must have shape \(depths, lengths\) = \(2, 1\), got \(1, 1\)",
        ),
        (
            lambda: plots.accuracy_map([1], [1], [[50]]),
            ValueError,
            "accuracy must be between 0 and",
        ),
        (lambda: plots.accuracy_curves(summary(), "x"), ValueError, "task must be one of 'lines'"),
        (
            lambda: plots.extrapolation_curves([1, 2], {"a": [1]}),
            ValueError,
            r"values\['a'\] must be 2 numbers, got 1",
        ),
        (
            lambda: plots.benchmark_curves([1, 2], {"a": [1, 2, 3]}),
            ValueError,
            r"seconds\['a'\] must be 2 numbers, got 3",
        ),
    ],
)
def test_mistakes_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
    assert plt.get_fignums() == []


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
            raise ImportError(f"No module named {name}")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for draw in PICTURES.values():
        with pytest.raises(ImportError, match=r"pip install 'ntk-alibi\[plot\]'"):
            draw()
    with pytest.raises(ImportError, match="pictures need matplotlib"):
        plots.study_figure(summary())
