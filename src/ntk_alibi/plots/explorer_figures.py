"""The two figures of an explorer, which its script fills: a large map, and the overview."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    CustomJSHover,
    HoverTool,
    LinearColorMapper,
    LogColorMapper,
)
from bokeh.palettes import Cividis256
from bokeh.plotting import figure

from ntk_alibi.plots.style import HUES, THEMES

#: Texts of the label at the pointer. Cells of several tokens have the first and the last one.
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


def large(words: list[str], step: int, cells: int) -> tuple[Any, Any, dict[str, Any]]:
    """Return the figure of one map, its image, its two scales of colours and their bar."""
    hidden = THEMES["light"].hidden
    mappers: dict[str, Any] = {
        "logarithmic": LogColorMapper(Cividis256, low=1e-4, high=1.0, nan_color=hidden),
        "linear": LinearColorMapper(Cividis256, low=0.0, high=1.0, nan_color=hidden),
    }
    end, edge = len(words) - 0.5, cells * step
    plot = figure(
        width=600,
        height=560,
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
    plot.grid.visible = False
    hover = CustomJSHover(args={"words": words, "step": step}, code=HOVER)
    names = {"query": "$y", "key": "$x", "distance": "$x", "weight": "@image"}
    plot.add_tools(
        HoverTool(
            renderers=[image],
            tooltips=[(name, f"{field}{{{name}}}") for name, field in names.items()],
            formatters=dict.fromkeys(names.values(), hover),
        )
    )
    bar = ColorBar(color_mapper=mappers["logarithmic"], title="weight")
    plot.add_layout(bar, "right")
    return plot, image, {**mappers, "bar": bar}


def overview(layers: list[str], heads: list[str], thumb: int) -> tuple[Any, Any, Any]:
    """Return the figure of all maps, the source of its image and that of the mark in it."""
    side = thumb + 1
    height, width = len(layers) * side, len(heads) * side
    plot = figure(
        width=min(900, max(300, 40 * len(heads))) + 60,
        height=min(620, max(120, 40 * len(layers))) + 70,
        x_range=(-1, width),
        y_range=(height, -1),
        x_axis_label="head",
        y_axis_label="layer",
        title="all heads: a click chooses one",
        tools="tap",
        toolbar_location=None,
    )
    blank = np.full((height, width), np.nan, np.float32)
    mapper = LinearColorMapper(
        Cividis256, low=65535 - 2048 * 14, high=65535, nan_color=THEMES["light"].hidden
    )
    image = plot.image(image=[blank], x=0, y=0, dw=width, dh=height, color_mapper=mapper)
    marked = ColumnDataSource({"x": [0.0], "y": [0.0]})
    plot.rect(
        "x", "y", side, side, source=marked, fill_color=None, line_color=HUES[1], line_width=3
    )
    for axis, names in ((plot.xaxis, heads), (plot.yaxis, layers)):
        places = [number * side + thumb / 2 for number in range(len(names))]
        axis.ticker = places
        axis.major_label_overrides = dict(zip(places, names, strict=True))
    plot.grid.visible = False
    return plot, image.data_source, marked
