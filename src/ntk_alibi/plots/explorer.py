"""An explorer of attention weights: one offline HTML page of all layers and heads.

The page is made by Bokeh, whose scripts it contains. It has the weights as 16-bit logarithms, from
which `explorer.js` draws the chosen map. `explorer.html` is the template: the page is as wide as
its window, and light or dark like its surroundings.
"""

from __future__ import annotations

import html
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks, _files, _installed
from ntk_alibi.methods import parameter_names
from ntk_alibi.plots.attention_maps import token_labels
from ntk_alibi.plots.style import HUES, THEMES

if TYPE_CHECKING:
    from ntk_alibi.models.attention_weights import AttentionWeights, Request

#: Methods that the explorer shows by default.
METHODS = (
    "original",
    *(f"{kind}:{factor}" for kind in ("ntk", "interpolation") for factor in (2, 4, 8)),
)

#: Endings of the file of a page.
FORMATS = (".html", ".htm")

#: Greatest number of weights in a page (89 MB), and in a page whose cells are counted here (11 MB).
MOST_WEIGHTS, USUAL_WEIGHTS = 2**25, 2**22

#: Least number of cells along an axis, and the number that a screen shows.
FEWEST_CELLS, MOST_CELLS = 32, 512

#: Cells along an axis of a map in the overview.
THUMB = 24

#: Greatest number of tokens with their text on the axes; no screen has room for more.
MOST_LABELLED = 64

#: Texts of the label at the pointer; a cell of several tokens shows the first and the last one.
HOVER = """
const cell = (at) => Math.floor((at + 0.5) / step), count = words.length;
const first = (c) => c * step, last = (c) => Math.min((c + 1) * step, count) - 1;
const {x, y} = special_vars;
if (format === "weight") {
  return Number.isNaN(value) ? "ahead of the query" : value === 0 ? "0" : value.toPrecision(3);
}
if (format === "distance") {
  const near = Math.max(0, first(cell(y)) - last(cell(x))), far = last(cell(y)) - first(cell(x));
  return far < 0 ? "ahead of the query" : near === far ? `${far}` : `${near} to ${far}`;
}
const c = cell(format === "query" ? y : x);
const text = (n) => `${n} ${JSON.stringify(words[n])}`;
return first(c) === last(c) ? text(first(c)) : `${text(first(c))} to ${text(last(c))}`;
"""


@dataclass(frozen=True, eq=False)
class Explorer:
    """A page of the attention weights of a model; notebooks display it.

    Attributes:
        html: the whole page.
        cells: cells along an axis of a map.
        step: tokens of a cell.
    """

    html: str
    cells: int
    step: int

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, and return its path.

        Raises:
            TypeError: path is no path.
            ValueError: the path does not end in .html or .htm.
            OSError: the file cannot be written.
        """
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a string or a path, got {path!r}")
        file = Path(path)
        _checks.choice("the ending of path", file.suffix.lower(), FORMATS)
        with _files.replacing(file) as page:
            page.write_text(self.html, encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" width="100%" height="680" '
            'style="border:0"></iframe>'
        )

    def __repr__(self) -> str:
        megabytes = len(self.html) / 1e6
        return f"Explorer({self.cells} cells of {self.step} tokens, {megabytes:.1f} MB)"


def explore(
    model: Any,
    tokenizer: Any,
    text: str,
    methods: Sequence[Any] | None = METHODS,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    cells: int | None = None,
) -> Explorer:
    """Return a page for exploring the attention weights of a model.

    The page has an overview of all layers and heads, where a click chooses one; menus for method,
    layer and head; a slider for the values of a method; and a map that shows the tokens of query
    and key, their distance and the weight under the pointer.

    Args:
        model: a decoder that `patch` takes; with methods=None, any transformers model
            that returns attention weights.
        tokenizer: the model's tokenizer.
        text: text of at least one token.
        methods: methods to choose from: names, scalings, or None for plain ALiBi. Each patches the
            model for its maps. In place of a sequence, None shows the model as it is.
        layers: layers, counted from 0 as in `layers` of a scaling; by default all.
        heads: heads, counted from 1 as in formulas; by default all.
        cells: greatest number of cells along the axes of a map. In longer texts, a cell shows the
            greatest weight of several queries and keys; the page tells of how many. By default, as
            many as fit into about 11 MB.

    Returns:
        The page; `.save(path)` writes it as one HTML file.

    Raises:
        TypeError, ValueError: an argument is wrong; the page would have more than 2^25 weights.
        ImportError: bokeh or torch is not installed.

    Example:
        >>> import ntk_alibi as na
        >>> from ntk_alibi.models import load
        >>> model, tokenizer, _ = load()
        >>> methods = ["original", "ntk:4"]
        >>> page = na.plots.explore(model, tokenizer, "Let there be light", methods)
        >>> page.step, "<script src" in page.html
        (1, False)
    """
    wanted, groups, most = checked(
        model, tokenizer, text, methods, layers=layers, heads=heads, cells=cells
    )
    read = wanted.read(most)
    return Explorer(_page(read, groups), read.values.shape[-1], read.step)


def checked(
    model: Any,
    tokenizer: Any,
    text: str,
    methods: Sequence[Any] | None,
    *,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    cells: int | None,
) -> tuple[Request, dict[str, dict[str, Any]], int]:
    """Check arguments of `explore`; return the request, the methods by kind and the most cells.

    The model may lack its weights: a command checks its arguments before it loads them.
    """
    with _installed.needed_by("explore", "explore"):
        import bokeh  # noqa: F401

        from ntk_alibi.models.attention_weights import request
    wanted = request(model, tokenizer, text, methods, layers, heads)
    return wanted, _groups(wanted), _cells(cells, wanted)


def _cells(cells: int | None, wanted: Request) -> int:
    """Return the greatest number of cells along an axis."""
    most = math.isqrt(MOST_WEIGHTS // wanted.maps)
    if most < FEWEST_CELLS:
        limit = MOST_WEIGHTS // FEWEST_CELLS**2
        raise ValueError(
            f"methods or layers must be fewer: a page has at most {limit} maps of methods x "
            f"layers x heads, got {wanted.maps}"
        )
    if cells is None:
        fitting = math.isqrt(2 * USUAL_WEIGHTS // wanted.maps)  # half of a map is hidden
        return min(max(fitting, FEWEST_CELLS), MOST_CELLS, most)
    number = _checks.integer("cells", cells, minimum=1)
    if number > most:
        raise ValueError(
            f"cells must be at most {most} for {wanted.maps} maps of methods x layers x heads, "
            f"got {number}"
        )
    return number


def _groups(wanted: Request) -> dict[str, dict[str, Any]]:
    """Return the methods by kind, such as "ntk", with the rest of their names."""
    groups: dict[str, dict[str, Any]] = {}
    labels = ["as it is" if method is None else method.name for method in wanted.methods]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            raise ValueError(f"methods must differ, got {label!r} twice")
        kind, _, rest = label.partition(":")
        values = ":".join(parameter_names(kind)) or "options"
        group = groups.setdefault(kind, {"values": values, "rest": [], "label": [], "index": []})
        group["rest"].append(rest or kind)
        group["label"].append(label)
        group["index"].append(index)
    return groups


def codes_of(values: NDArray[np.float32]) -> tuple[NDArray[np.uint16], bool]:
    """Return weights as 16-bit logarithms, and whether all maps are causal.

    2048 log2(weight) + 65535 is exact to 0.02 %; 1 is any weight below 2^-32, 0 a hidden key.
    """
    rows, columns = np.tril_indices(values.shape[-1])
    causal = bool(np.isnan(values).sum() == values.size - values[..., rows, columns].size)
    kept = values[..., rows, columns] if causal else values
    with np.errstate(divide="ignore"):
        logarithms = np.rint(65535 + 2048 * np.log2(np.minimum(kept, 1), dtype=np.float64))
    codes = np.where(np.isnan(kept), 0, np.maximum(np.nan_to_num(logarithms, nan=1), 1))
    return codes.astype(np.uint16).ravel(), causal


def _page(read: AttentionWeights, groups: dict[str, dict[str, Any]]) -> str:
    from bokeh.document import Document
    from bokeh.embed import file_html
    from bokeh.events import DocumentReady
    from bokeh.models import ColumnDataSource, CustomJS
    from bokeh.resources import INLINE

    wanted, cells = read.request, read.values.shape[-1]
    codes, triangle = codes_of(read.values)
    thumb = min(cells, THUMB)
    layers, heads = ([str(number) for number in n] for n in (wanted.layers, wanted.heads))
    words = list(wanted.words)
    large, image, colours = _large(words, read.step, cells)
    overview, sheet, marked = _overview(layers, heads, thumb)
    given = {
        "codes": ColumnDataSource({"codes": codes}),
        **{"cells": cells, "triangle": triangle, "thumb": thumb},
        **{"methods": groups, "layers": layers, "heads": heads},
        **{"map": image.data_source, "map_image": image, "title": large.title},
        **colours,
        **{"overview_figure": overview, "overview": sheet.data_source, "marked": marked},
        "overview_colours": sheet.glyph.color_mapper,
    }
    several = f"; a cell shows the greatest weight of {read.step} x {read.step} tokens"
    shown = {
        **{"methods": groups, "layers": layers, "heads": heads, "of": wanted.totals},
        "note": f"{len(words)} tokens{several if read.step > 1 else ''}",
        "themes": {name: THEMES[name] for name in ("light", "dark")},
    }
    document = Document()
    document.add_root(large)
    document.add_root(overview)
    document.js_on_event(DocumentReady, CustomJS(args=given, code=_source("explorer.js")))
    return str(
        file_html(
            document,
            resources=INLINE,
            title="Attention weights",
            template=_source("explorer.html"),
            template_variables=shown,
        )
    )


def _source(name: str) -> str:
    return resources.files("ntk_alibi.plots").joinpath(name).read_text("utf-8")


def _large(words: list[str], step: int, cells: int) -> tuple[Any, Any, dict[str, Any]]:
    """Return the figure of one map, its image, and its two scales of colours with their bar."""
    from bokeh.models import ColorBar, CustomJSHover, HoverTool, LinearColorMapper, LogColorMapper
    from bokeh.palettes import Cividis256

    mappers: dict[str, Any] = {
        "logarithmic": LogColorMapper(Cividis256, low=1e-4, high=1.0),
        "linear": LinearColorMapper(Cividis256, low=0.0, high=1.0),
    }
    end, edge = len(words) - 0.5, cells * step
    plot = _figure(
        name="map",
        toolbar_location="below",
        x_range=(-0.5, end),
        y_range=(end, -0.5),
        x_axis_label="key",
        y_axis_label="query",
        tools="pan,box_zoom,wheel_zoom,reset,save",
        title="attention weights",
    )
    blank = np.full((cells, cells), np.nan, np.float32)
    image = plot.image(
        image=[blank], x=-0.5, y=-0.5, dw=edge, dh=edge, color_mapper=mappers["logarithmic"]
    )
    if len(words) <= MOST_LABELLED:
        _label(plot.xaxis, range(len(words)), token_labels(words))
        _label(plot.yaxis, range(len(words)), token_labels(words))
        plot.xaxis.major_label_orientation = "vertical"
    hover = CustomJSHover(args={"words": words, "step": step}, code=HOVER)
    names = {"query": "$y", "key": "$x", "distance": "$x", "weight": "@image"}
    plot.add_tools(
        HoverTool(
            renderers=[image],
            tooltips=[(name, f"{field}{{{name}}}") for name, field in names.items()],
            formatters=dict.fromkeys(names.values(), hover),
        )
    )
    bar = ColorBar(
        color_mapper=mappers["logarithmic"], title="weight", width=12, background_fill_color=None
    )
    plot.add_layout(bar, "right")
    return plot, image, {**mappers, "bar": bar}


def _overview(layers: list[str], heads: list[str], thumb: int) -> tuple[Any, Any, Any]:
    """Return the figure of all maps, its image, and the source of the mark on the chosen one."""
    from bokeh.models import ColumnDataSource, LinearColorMapper
    from bokeh.palettes import Cividis256

    side = thumb + 1
    height, width = len(layers) * side, len(heads) * side
    plot = _figure(
        name="overview",
        x_range=(-1, width),
        y_range=(height, -1),
        x_axis_label="head",
        y_axis_label="layer",
        title="all heads: a click chooses one",
        tools="tap",
        toolbar_location=None,
    )
    blank = np.full((height, width), np.nan, np.float32)
    mapper = LinearColorMapper(Cividis256, low=65535 - 2048 * 14, high=65535)
    image = plot.image(image=[blank], x=0, y=0, dw=width, dh=height, color_mapper=mapper)
    marked = ColumnDataSource({"x": [0.0], "y": [0.0]})
    plot.rect(
        "x", "y", side, side, source=marked, fill_color=None, line_color=HUES[1], line_width=3
    )
    for axis, names in ((plot.xaxis, heads), (plot.yaxis, layers)):
        _label(axis, [number * side + thumb / 2 for number in range(len(names))], names)
    return plot, image, marked


def _figure(**options: Any) -> Any:
    """Return a figure with the background of the page."""
    from bokeh.plotting import figure

    plot = figure(sizing_mode="stretch_both", **options)
    plot.update(background_fill_color=None, border_fill_color=None, outline_line_color=None)
    plot.grid.visible = False
    return plot


def _label(axis: Any, places: Sequence[float], names: Sequence[str]) -> None:
    """Label an axis by names, where there is room."""
    from bokeh.models import FixedTicker, NoOverlap

    axis.ticker = FixedTicker(ticks=list(places))
    axis.major_label_overrides = dict(zip(places, names, strict=True))
    axis.major_label_policy = NoOverlap(min_distance=0)
