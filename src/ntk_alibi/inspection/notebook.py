"""HTML representations of biases and scalings for notebooks: a small picture and a table.

The pictures are SVG without matplotlib, which may be missing. They use the text colour of the page,
so they suit light and dark pages.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays
from ntk_alibi.biases.alibi import ALiBi
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.inspection import effects
from ntk_alibi.masks import Mask, Problem
from ntk_alibi.scaling import Scaling, scaling_per, trained_at
from ntk_alibi.scaling.knee import DistanceScaling

#: Colours that are readable on white and on black.
HUES = ("#888888", "#1c86c7", "#d9700f")

#: Head count of the model whose slopes illustrate a scaling.
EXAMPLE_HEADS = 16

#: Training length of a dynamic scaling without one; slopes depend on multiples of it only.
EXAMPLE_LENGTH = 2048

#: Size of a picture and its left and bottom margins, in pixels.
WIDTH, HEIGHT, LEFT, BELOW = 380, 130, 56, 30

#: The stroke of a head goes from the distance of weight 1/e to the distance of this weight.
FAINT = 0.01


@functools.singledispatch
def html(shown: object) -> str | None:
    """Return the HTML of an object, or None for one that is neither a bias nor a scaling."""
    del shown
    return None


@html.register(BiasObject)
def bias_html(bias: Any) -> str | None:
    """Return a picture and a table of how far each head of a bias reaches.

    None for a bias that is no function of distance, is on the meta device, or has no values for the
    distances of the picture.
    """
    if any(getattr(x, "is_meta", False) for x in bias.parameters):
        return None
    try:
        return _bias_page(bias) if _over_distance(bias) else None
    except (IndexError, ValueError):  # it has no values for these distances
        return None


def _bias_page(bias: Any) -> str | None:
    length = getattr(getattr(bias, "scaling", None), "train_length", None)
    at = "" if length is None else f" at {length} tokens"
    sides: dict[str, Any] = {"behind": {"side": "behind"}, "ahead": {"side": "ahead"}}
    longest = _longest(bias)
    if getattr(bias, "sides", "causal") == "causal":
        del sides["ahead"], longest["ahead"]
    if min(longest.values()) < 2:
        return None
    columns: dict[str, list[str]] = {}
    series = []
    for name, side in sides.items():
        steps = -effects.bias_by_distance(bias, 2, length=length, **side)[:, 1]
        columns[f"slope {name}"] = ["hidden" if np.isinf(s) else f"{s:.4g}" for s in steps]
        near, far = (
            effects.receptive_field(bias, share, longest=longest[name], length=length, **side)
            for share in (1 / np.e, FAINT)
        )
        columns[f"1/e {name}"] = [_tokens(reach, longest[name]) for reach in near]
        columns[f"{100 * FAINT:g} % {name}"] = [_tokens(reach, longest[name]) for reach in far]
        series.append((near, far))
    heads = [str(head) for head in range(1, bias.num_heads + 1)]
    table = table_html(["head", *columns], zip(heads, *columns.values(), strict=True))
    caption = f"distance where a head's weight is 1/e … {100 * FAINT:g} %{at}"
    if len(series) > 1:
        caption += ": " + _keys(sides, HUES[1:])
    return _page(repr(bias), _strokes_svg(series, caption, max(longest.values())), table)


@html.register(Scaling)
def scaling_html(scaling: Scaling) -> str:
    """Return a picture and a table of the slopes of 16 heads, unscaled and scaled."""
    train_length = getattr(scaling, "train_length", None)
    name, scaling = repr(scaling), trained_at(_at_its_layers(scaling), EXAMPLE_LENGTH)
    if scaling_per(scaling) is None:
        scaled = {"scaled": effects.slopes_at(EXAMPLE_HEADS, scaling, None)}
    else:
        tokens = EXAMPLE_LENGTH if train_length is None else train_length
        texts = (f"at {tokens} tokens", f"at {4 * tokens} tokens")
        if train_length is None:
            texts = ("at the training length", "at 4 training lengths")
        scaled = {
            text: effects.slopes_at(EXAMPLE_HEADS, scaling, length)
            for text, length in zip(texts, (tokens, 4 * tokens), strict=True)
        }
    rows = {"plain": effects.slopes_at(EXAMPLE_HEADS, None, None)} | scaled
    heads = [str(head) for head in range(1, EXAMPLE_HEADS + 1)]
    cells = ([f"{slope:.4g}" for slope in slopes] for slopes in rows.values())
    table = table_html(["head", *rows], zip(heads, *cells, strict=True))
    caption = f"slopes of {EXAMPLE_HEADS} heads: {_keys(rows, HUES)}"
    return _page(name, _lines_svg(list(rows.values()), caption), table)


@html.register(DistanceScaling)
def knee_html(knee: DistanceScaling) -> str | None:
    """Return a picture and a table of how far each of 16 heads reaches with a knee."""
    return bias_html(ALiBi(EXAMPLE_HEADS, _at_its_layers(knee)))


def _at_its_layers(scaling: Any) -> Any:
    """Return the scaling as a layer has it to which it applies."""
    layers = getattr(scaling, "layers", None)
    return scaling.at_layer(layers[0]) if layers else scaling


def table_html(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table; all columns but the first are aligned right."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="text-align:{"right" if place else "left"}">{escape(cell)}</td>'
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _page(name: str, picture: str, table: str) -> str:
    return (
        f"<div><code>{escape(name)}</code><br/>{picture}"
        f"<details><summary>values</summary>{table}</details></div>"
    )


def _over_distance(bias: Any) -> bool:
    shape = (bias.rows, bias.num_heads, bias.query_length or 1, 2)
    like = next(filter(_arrays.is_tensor, bias.parameters), None)
    kernel = bias.kernel_bias(Problem(shape, Mask(causal=bias.sides == "causal")), like)
    return kernel.left is not None or kernel.table is not None


def _longest(bias: Any) -> dict[str, int]:
    """Return how many distances, from 0 on, a bias has on each side."""
    covered = bias.covered_distances
    if covered is None:
        return dict.fromkeys(("behind", "ahead"), effects.LONGEST)
    first, last = covered
    sides = {"behind": last + 1 if first <= 0 else 0, "ahead": 1 - first}
    return {name: min(count, effects.LONGEST) for name, count in sides.items()}


def _strokes_svg(
    series: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], caption: str, longest: int
) -> str:
    """Return a picture with a stroke for each head between two distances, on a logarithmic axis.

    Strokes of heads that reach farther than the search end at `longest`.
    """
    finite = [x[np.isfinite(x) & (x > 0)] for pair in series for x in pair]
    top = max([float(x.max()) for x in finite if len(x)], default=1.0)
    if any(np.isinf(x).any() for pair in series for x in pair):
        top = float(longest)
    bottom = min([float(x.min()) for x in finite if len(x)], default=1.0)
    top, bottom = max(top, 2 * bottom), min(bottom, top / 2)
    heads = len(series[0][0])
    shapes = []
    for index, (near, far) in enumerate(series):
        for head in np.flatnonzero(far > 0):
            x = _across(head + (index + 0.5) / len(series), heads)
            low, high = (
                _up(float(np.clip(reach[head], bottom, top)), bottom, top) for reach in (near, far)
            )
            style = f'stroke="{HUES[1 + index]}" stroke-width="{min(4.0, 120 / heads):.1f}"'
            shapes.append(f'<path d="M{x:.1f} {low:.1f}V{min(high, low - 3):.1f}" {style}/>')
    return _svg("".join(shapes), caption, bottom, top)


def _lines_svg(rows: Sequence[NDArray[Any]], caption: str) -> str:
    """Return a picture with a line for each row over heads, on a logarithmic axis."""
    bottom, top = float(np.min(rows)), float(np.max(rows))
    shapes = []
    for row, hue in zip(rows, HUES, strict=False):
        points = " ".join(
            f"{_across(head + 0.5, len(row)):.1f},{_up(float(value), bottom, top):.1f}"
            for head, value in enumerate(row)
        )
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{hue}" stroke-width="2"/>')
    return _svg("".join(shapes), caption, bottom, top)


def _keys(names: Iterable[str], hues: Iterable[str]) -> str:
    """Return a legend: each name in the colour of its curve."""
    pairs = zip(names, hues, strict=False)
    return ", ".join(f'<tspan fill="{hue}">{name}</tspan>' for name, hue in pairs)


def _svg(shapes: str, caption: str, bottom: float, top: float) -> str:
    ticks = "".join(
        f'<text x="{LEFT - 6}" y="{_up(value, bottom, top) + 4:.1f}" text-anchor="end">'
        f"{value:{'.0f' if value >= 1000 else '.3g'}}</text>"
        for value in (bottom, top)
    )
    frame = f"M{LEFT} 6V{HEIGHT - BELOW}H{WIDTH - 4}"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="10" '
        'fill="currentColor" role="img">'
        f'<path d="{frame}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
        f'{ticks}{shapes}<text x="{LEFT}" y="{HEIGHT - 10}">{caption}</text></svg>'
    )


def _across(head: float, heads: int) -> float:
    return LEFT + (WIDTH - LEFT - 8) * head / heads


def _up(value: float, bottom: float, top: float) -> float:
    whole = np.log(top / bottom)
    part = np.log(value / bottom) / whole if whole else 0.5
    return float(HEIGHT - BELOW - 6 - part * (HEIGHT - BELOW - 18))


def _tokens(reach: float, longest: int) -> str:
    if np.isinf(reach):
        return f"> {longest - 1}"  # the last distance searched
    return f"{reach:.1f}" if reach < 100 else f"{reach:.0f}"
