"""Comparison of pictures with baseline images, and legibility in both themes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.testing.compare import compare_images
from matplotlib.text import Text

from ntk_alibi import plots
from ntk_alibi.plots.style import THEMES
from pictures import PICTURES, luminance

BASELINES = Path(__file__).parent / "baseline_images"

#: Root mean square over pixels, on a scale to 255. A missing line makes a difference of about 10,
#: as it covers one in 200 pixels of these small images by half of the range or more. Antialiasing
#: makes less than 1.
TOLERANCE = 3.0


def textless(name: str, theme: str) -> Figure:
    """Return a small figure of a picture without anything that depends on fonts."""
    with plots.style(theme):  # type: ignore[arg-type]
        figure = Figure(figsize=(4, 3), dpi=60)
        PICTURES[name](ax=figure.add_axes((0.08, 0.08, 0.84, 0.84)))
    for artist in [*figure.findobj(Text), *figure.findobj(Legend)]:
        artist.set_visible(False)
    return figure


@pytest.mark.needs("matplotlib >= 3.11", "which drew the images to compare with")
@pytest.mark.parametrize("theme", ["light", "dark"])
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
def test_text_is_legible_in_all_themes(name: str) -> None:
    """WCAG 2.1 asks for 4.5; no colour has more than 4.4 on JupyterLab's white and its black."""
    grounds = {theme: ([THEMES[theme].background], 4.5) for theme in ("light", "dark")}
    for theme, (faces, least) in {**grounds, "transparent": (["#ffffff", "#111111"], 3.9)}.items():
        with plots.style(theme):  # type: ignore[arg-type]
            axes = PICTURES[name]()
        axes.figure.canvas.draw()  # after the style's block, as notebooks do
        for text in axes.figure.findobj(Text):
            if isinstance(text, Text) and text.get_text():
                for ground in map(luminance, faces):
                    light, dark = sorted((luminance(text.get_color()), ground), reverse=True)
                    assert (light + 0.05) / (dark + 0.05) >= least, (theme, text)
        plt.close("all")
