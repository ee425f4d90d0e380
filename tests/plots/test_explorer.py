"""The explorer's page holds the weights of the model, and shows them in a browser offline."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import ntk_alibi as na
from ntk_alibi import plots
from ntk_alibi.plots.style import THEMES
from pictures import explorer, random_model, weights_of

pytest.importorskip("bokeh", reason="bokeh is not installed")

TEXT_OF_PROMPT = "in the beginning"

#: A weight is stored as a logarithm to 1/2048 of a factor of 2, rounded.
PRECISION = 2 ** (0.5 / 2048) - 1

#: Collects the text of a page, that in shadow roots included.
TEXT = """
const parts = [];
const walk = (node) => {
  if (node.nodeType === Node.TEXT_NODE) { parts.push(node.textContent); }
  if (node.nodeName === "STYLE" || node.nodeName === "SCRIPT") { return; }
  if (node.shadowRoot) { node.shadowRoot.childNodes.forEach(walk); }
  node.childNodes.forEach(walk);
};
walk(document.body);
return parts.join(" ").replace(/\\s+/g, " ");
"""


@contextmanager
def page(path: Path) -> Iterator[Any]:
    """Yield selenium's driver with a file loaded in a headless Chromium without a network."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for option in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1500,900"):
        options.add_argument(f"--{option}")
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    running = webdriver.Chrome(options=options, service=service)
    try:
        running.get(path.as_uri())
        yield running
    finally:
        running.quit()


#: Returns the title and the values of the map that is shown.
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

#: Sets a menu or the slider of the page, as a user does.
SET = """
const input = document.forms[0].elements[arguments[0]];
input.value = arguments[1];
for (const cause of ["input", "change"]) { input.dispatchEvent(new Event(cause)); }
"""

#: Returns the labels at the map's axes.
LABELS = """
const figures = [...Bokeh.documents[0].all_models].filter((m) => m.type === "Figure");
const figure = figures.find((f) => f.title.text.startsWith("layer"));
const axes = [...figure.left, ...figure.below].filter((each) => each.major_label_overrides);
return axes.map((axis) => Object.fromEntries(axis.major_label_overrides));
"""

#: Returns the page's theme and its ground, and the colour of hidden cells.
COLOURS = """
const frame = document.querySelector("iframe"), page = frame ? frame.contentWindow : window;
const root = page.document.documentElement;
if (!root.dataset.theme) { return null; }
const models = [...page.Bokeh.documents[0].all_models];
const hidden = models.find((m) => m.type === "LogColorMapper").nan_color;
return [root.dataset.theme, page.getComputedStyle(page.document.body).backgroundColor, hidden];
"""

#: Returns background and text colour, of the label at the pointer and of the page.
LABEL_COLOURS = """
const label = document.querySelector(".bk-Tooltip");
if (!label) { return null; }
return [label, document.body].map((node) => {
  const {backgroundColor, color} = getComputedStyle(node);
  return [backgroundColor, color];
});
"""

#: Returns the height of a notebook's frame, and of the page in it.
HEIGHTS = """
const frame = document.querySelector("iframe");
return [frame, frame.contentDocument.body].map((node) => node.getBoundingClientRect().height);
"""


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    made = explorer()
    saved = made.save(tmp_path / "page.html").read_text("utf-8")
    assert saved == made.html
    assert not re.search(r"<(script|link)[^>]*(src|href)=", saved)
    assert made._repr_html_().startswith("<iframe srcdoc=")
    assert repr(made) == f"Explorer(16 cells of 1 tokens, {len(saved) / 1e6:.1f} MB)"
    assert na.patched(random_model()) == []


@pytest.mark.parametrize(
    ("methods", "values"),
    [
        (["ntk:2", "ntk:4"], "factor"),
        (["dynamic-ntk:1:query", "dynamic-ntk:2:query"], "rate"),
        (["knee:4:2", "knee:4:4"], "start:factor"),
        (["original", "original:logn=1"], "options"),
    ],
)
def test_the_slider_has_the_names_of_a_methods_values(methods: list[str], values: str) -> None:
    assert f'["values","{values}"]' in explorer(methods=methods, layers=[0], heads=[1]).html


def shown(driver: Any) -> tuple[str, Any]:
    found = driver.execute_script(SHOWN)
    values = np.array([math.nan if x is None else x for x in found["image"]])
    side = math.isqrt(len(values))
    return found["title"], values.reshape(side, side)


@pytest.mark.slow
def test_a_browser_shows_weights_under_the_pointer_and_of_chosen_methods(tmp_path: Path) -> None:
    path = explorer().save(tmp_path / "page.html")
    with page(path) as driver:
        from selenium.webdriver import ActionChains
        from selenium.webdriver.support.ui import WebDriverWait

        def until(condition: Any) -> Any:
            return WebDriverWait(driver, 60).until(lambda _: condition())

        figures = until(lambda: _figures(driver))
        title, values = shown(driver)
        assert title == "layer 1, head 4: original"
        np.testing.assert_array_equal(np.isnan(values), ~np.tril(np.ones((16, 16), bool)))
        np.testing.assert_allclose(
            np.nan_to_num(values), weights_of(TEXT_OF_PROMPT)[1, 3], rtol=PRECISION
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

        driver.execute_script(SET, "method", "ntk")
        until(lambda: shown(driver)[0] == "layer 1, head 4: ntk:2")
        driver.execute_script(SET, "values", 1)
        until(lambda: shown(driver)[0] == "layer 1, head 4: ntk:8")
        expected = weights_of(TEXT_OF_PROMPT, na.NTK(8.0))
        np.testing.assert_allclose(np.nan_to_num(shown(driver)[1]), expected[1, 3], rtol=PRECISION)

        at = point(1, 1.5 / 4, 0.5 / 2)
        at.pointer_action.click()
        at.perform()
        until(lambda: shown(driver)[0] == "layer 0, head 2: ntk:8")
        np.testing.assert_allclose(np.nan_to_num(shown(driver)[1]), expected[0, 1], rtol=PRECISION)

        labels = {str(number): word for number, word in enumerate(words)}
        assert driver.execute_script(LABELS) == [labels, labels]
        for width in (390, 980, 1400):  # a phone, a narrow window, a screen
            _show_as(driver, width, "light")
            until(lambda: _widths(driver, figures) == [width, True])  # noqa: B023
        _refuse_errors(driver)


def _show_as(driver: Any, width: int, scheme: str) -> None:
    """Let a browser's window have a width, and its system a theme."""
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def _widths(driver: Any, figures: Any) -> Any:
    """Return how wide the page is, and whether the frames of both figures are on it."""
    frames = [driver.execute_script(FRAME, figure) for figure in figures]
    page = driver.execute_script("return document.documentElement.scrollWidth")
    return [page, all(f["left"] > 0 and 150 < f["width"] < page - f["left"] for f in frames)]


def _refuse_errors(driver: Any) -> None:
    severe = [e for e in driver.get_log("browser") if e["level"] == "SEVERE"]
    assert not severe, severe


@pytest.mark.slow
def test_a_page_is_light_or_dark_as_its_surroundings(tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    made = explorer(methods=["original"])
    path = made.save(tmp_path / "page.html")
    notebook.write_text(f'<body data-jp-theme-light="false">{made._repr_html_()}</body>', "utf-8")
    expected = {
        name: [name, f"rgb{tuple(round(255 * x) for x in to_rgb(theme.background))}", theme.hidden]
        for name, theme in THEMES.items()
    }
    with page(path) as driver:
        from selenium.webdriver import ActionChains
        from selenium.webdriver.support.ui import WebDriverWait

        def until_it_is(theme: str) -> None:
            WebDriverWait(driver, 60).until(
                lambda _: driver.execute_script(COLOURS) == expected[theme]
            )

        for scheme in ("dark", "light"):
            _show_as(driver, 980, scheme)
            until_it_is(scheme)
            for place in ("overview", "map"):  # the label is made anew when the pointer comes
                ActionChains(driver).move_to_element(
                    driver.find_element("class name", place)
                ).perform()
            label, ground = WebDriverWait(driver, 60).until(
                lambda _: driver.execute_script(LABEL_COLOURS)
            )
            assert label == ground
        driver.get(notebook.as_uri())  # whose theme is not the system's
        until_it_is("dark")
        high, inside = driver.execute_script(HEIGHTS)
        assert inside <= high < inside + 1
        driver.execute_script("document.body.dataset.jpThemeLight = 'true'")
        until_it_is("light")
        _refuse_errors(driver)


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
