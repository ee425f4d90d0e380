"""The explorer's page holds the weights of the model, and shows them in a browser offline."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ntk_alibi as na
from chromium import TEXT, page
from ntk_alibi import plots
from pictures import explorer, random_model, weights_of

pytest.importorskip("bokeh", reason="bokeh is not installed")

TEXT_OF_PROMPT = "in the beginning"

#: A weight is stored as a logarithm to 1/2048 of a factor of 2, rounded.
PRECISION = 2 ** (0.5 / 2048) - 1

#: Returns what a mark in a page's figure says about a map: its title and its numbers.
SHOWN = """
const figures = [...Bokeh.documents[0].all_models].filter((m) => m.type === "Figure");
const figure = figures.find((f) => f.title.text.startsWith("layer"));
const image = figure.renderers[0].data_source.data.image[0];
return {title: figure.title.text, image: Array.from(image, (x) => Number.isNaN(x) ? null : x)};
"""

#: Returns the place of the figure's frame in the window.
FRAME = """
const view = Bokeh.index.find_one_by_id
  ? Bokeh.index.find_one_by_id(arguments[0]) : Object.values(Bokeh.index)[0];
const box = view.el.getBoundingClientRect(), frame = view.frame.bbox;
return {left: box.left + frame.left, top: box.top + frame.top,
        width: frame.width, height: frame.height};
"""

#: Returns the ids of the map's figure and of the overview's.
FIGURES = """
const figures = [...Bokeh.documents[0].all_models].filter((m) => m.type === "Figure");
const map = figures.find((f) => f.title.text.startsWith("layer"));
return [map.id, figures.find((f) => f !== map).id];
"""

#: Chooses an option of the page's menu of a name, as a user's click does.
CHOOSE = """
const found = [];
const walk = (node) => {
  if (node.nodeName === "SELECT") { found.push(node); }
  if (node.shadowRoot) { node.shadowRoot.childNodes.forEach(walk); }
  node.childNodes.forEach(walk);
};
walk(document.body);
found[arguments[0]].value = arguments[1];
found[arguments[0]].dispatchEvent(new Event("change", {bubbles: true}));
"""

#: Moves the slider of factors.
SLIDE = """
const models = [...Bokeh.documents[0].all_models];
models.find((m) => m.type === "CategoricalSlider").value = arguments[0];
"""


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    made = explorer()
    saved = made.save(tmp_path / "page.html").read_text("utf-8")
    assert saved == made.html
    assert not re.search(r"<(script|link)[^>]*(src|href)=", saved)
    assert made._repr_html_().startswith("<iframe srcdoc=")
    assert repr(made) == f"Explorer(16 cells of 1 tokens, {len(saved) / 1e6:.1f} MB)"
    assert na.patched(random_model()) == []


def shown(driver: Any) -> tuple[str, Any]:
    found = driver.execute_script(SHOWN)
    numbers = np.array([math.nan if x is None else x for x in found["image"]])
    side = math.isqrt(len(numbers))
    return found["title"], numbers.reshape(side, side)


@pytest.mark.slow
def test_a_browser_shows_weights_under_the_pointer_and_of_chosen_methods(tmp_path: Path) -> None:
    path = explorer().save(tmp_path / "page.html")
    with page(path) as driver:
        from selenium.webdriver import ActionChains
        from selenium.webdriver.support.ui import WebDriverWait

        def until(condition: Any) -> Any:
            return WebDriverWait(driver, 60).until(lambda _: condition())

        figures = until(lambda: _figures(driver))
        title, numbers = shown(driver)
        assert title == "layer 1, head 4: original"
        np.testing.assert_array_equal(np.isnan(numbers), ~np.tril(np.ones((16, 16), bool)))
        np.testing.assert_allclose(
            np.nan_to_num(numbers), weights_of(TEXT_OF_PROMPT)[1, 3], rtol=PRECISION
        )

        def point(figure: int, x: float, y: float) -> Any:
            """Return actions that move to a share of the figure's width and height."""
            at = driver.execute_script(FRAME, figures[figure])
            move = ActionChains(driver).w3c_actions
            move.pointer_action.move_to_location(
                round(at["left"] + x * at["width"]), round(at["top"] + y * at["height"])
            )
            return move

        point(0, 5.5 / 16, 9.5 / 16).perform()
        words = [f"<{ord(letter) % 99}>" for letter in TEXT_OF_PROMPT]
        until(lambda: "distance" in driver.execute_script(TEXT))
        tip = driver.execute_script(TEXT)
        assert f'9 "{words[9]}"' in tip
        assert f'5 "{words[5]}"' in tip
        weight = re.search(r"weight:? (\S+)", tip)
        assert weight is not None, tip
        three_digits = 0.5e-2 + PRECISION  # of a number that begins with 1
        assert float(weight[1]) == pytest.approx(
            weights_of(TEXT_OF_PROMPT)[1, 3, 9, 5], rel=three_digits
        )
        assert re.search(r"distance:? 4\b", tip), tip

        driver.execute_script(CHOOSE, 0, "NTK")
        until(lambda: shown(driver)[0] == "layer 1, head 4: NTK a=2")
        driver.execute_script(SLIDE, "a=8")
        until(lambda: shown(driver)[0] == "layer 1, head 4: NTK a=8")
        expected = weights_of(TEXT_OF_PROMPT, na.NTK(8.0))
        np.testing.assert_allclose(np.nan_to_num(shown(driver)[1]), expected[1, 3], rtol=PRECISION)

        at = point(1, 1.5 / 4, 0.5 / 2)
        at.pointer_action.click()
        at.perform()
        until(lambda: shown(driver)[0] == "layer 0, head 2: NTK a=8")
        np.testing.assert_allclose(np.nan_to_num(shown(driver)[1]), expected[0, 1], rtol=PRECISION)
        severe = [e for e in driver.get_log("browser") if e["level"] == "SEVERE"]
        assert not severe, severe


def _figures(driver: Any) -> Any:
    ready = "return typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0"
    if not driver.execute_script(ready):
        return None
    try:
        return driver.execute_script(FIGURES)
    except Exception:  # the map has no title until the script has run
        return None


def test_cells_of_long_texts_hold_the_greatest_weight() -> None:
    made = explorer(cells=5)
    assert (made.cells, made.step) == (4, 4)
    assert "a cell shows the greatest weight of 4 x 4 tokens" in made.html


@pytest.mark.parametrize("values", [[0.0, 1.0, 1e-12, 0.3], [[1.0, 0.5], [0.25, 2.0**-31]]])
def test_weights_are_stored_to_their_precision(values: Any) -> None:
    square = np.broadcast_to(np.float32(values), (1, 1, 1, 2, 2) if np.ndim(values) > 1 else (4, 4))
    codes, causal = plots.explorer.codes_of(np.ascontiguousarray(square))
    back = np.where(codes == 1, 0.0, 2.0 ** ((codes.astype(float) - 65535) / 2048))
    assert not causal
    expected = np.where(square < 2.0**-32, 0.0, square).ravel()
    np.testing.assert_allclose(back, expected, rtol=PRECISION * 1.001)
