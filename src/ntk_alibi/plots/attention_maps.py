"""Pictures of the attention weights of a model: one head, or several heads by several methods.

Layers are counted from 0, as scalings count them, and heads from 1, as formulas do; titles name
both ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ntk_alibi.plots.style import (
    color_bar,
    drawing,
    drawing_figure,
    finish,
    heat,
    integer_ticks,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from ntk_alibi.models.attention_weights import AttentionWeights

#: Cells along the axes of a single map, and of one of many. The axes have more pixels: an image
#: that is drawn smaller loses thin lines.
MOST_CELLS, FEW_CELLS = 400, 128

#: Greatest number of maps in a picture.
MOST_MAPS = 256

#: Tokens have their text as labels if letters of this size fit, in points.
LEAST_LETTERS, USUAL_LETTERS = 4.5, 8.0

#: Greatest number of letters in a line of the title of one of many maps.
TITLE_LETTERS = 26

#: Greatest number of letters of a token that are shown.
LONGEST_WORD = 12

#: The logarithmic scale for long texts begins at this share of the greatest weight.
LEAST_SHARE = 1e-4


def attention_map(
    model: Any,
    tokenizer: Any,
    text: str,
    *,
    layer: int = -1,
    head: int = 1,
    ax: Axes | None = None,
) -> Axes:
    """Draw the attention weights of one head of a model, patched or not, for a text.

    Args:
        model: a transformers model that returns attention weights, patched or not.
        tokenizer: the model's tokenizer.
        text: text of at least one token. Tokens have their text as labels if that fits. With more
            than 400 tokens, a cell shows the greatest weight of several queries and keys, and the
            colours are logarithmic.
        layer: the layer, counted from 0 as in `layers` of a scaling, or from the end if negative.
        head: the head, counted from 1 as in formulas and all other pictures.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with an image (tokens, tokens) and a colour bar; keys ahead of the query are grey.

    Raises:
        TypeError, ValueError: an argument is wrong; the text has no tokens, or so many that a layer
            would compute more than 2^29 weights.
        ImportError: matplotlib or torch is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> from ntk_alibi.models import load
        >>> model, tokenizer, _ = load()
        >>> with na.patch(model, na.NTK(4.0)):
        ...     ax = na.plots.attention_map(model, tokenizer, "Let there be light")
        >>> bool((ax.get_images()[0].get_array().sum(axis=1) > 0.999).all())
        True
        >>> plt.close(ax.figure)
    """
    with drawing(ax, size=(6.4, 5.2)) as axes:
        from ntk_alibi.models.attention_weights import attention_weights

        single = {"most_maps": 1, "most_cells": MOST_CELLS}
        read = attention_weights(model, tokenizer, text, None, [layer], [head], **single)
        values = read.values[0, 0, 0]
        image = _draw(axes, read, values, _norm(read), USUAL_LETTERS)
        color_bar(image, [axes], _quantity(read))
        place = f"layer {read.layers[0]}, head {head}"
        finish(axes, f"Attention of {place} ({_ranges(read)})", "key", "query")
    return axes


def attention_maps(
    model: Any,
    tokenizer: Any,
    text: str,
    *,
    methods: Sequence[Any] | None = None,
    layers: Sequence[int] | None = (-1,),
    heads: Sequence[int] | None = None,
) -> Figure:
    """Draw the attention weights of several heads of a model, with several methods side by side.

    Args:
        model: as for `attention_map`; to compare methods, a model that `patch` supports.
        tokenizer: the model's tokenizer.
        text: as for `attention_map`, with cells of several tokens from 128 tokens on.
        methods: methods to compare, such as ["original", "ntk:4"]: names, scalings, or None for
            plain ALiBi. Each patches the model for its maps, in place of a patch in force. By
            default, the model as it is.
        layers: layers, counted from 0, or from the end if negative; None for all.
        heads: heads, counted from 1; by default all.

    Returns:
        The figure, which pyplot does not manage, with a map for each head and method; all share
        one scale of colours.

    Raises:
        TypeError, ValueError: an argument is wrong, or there are more than 256 maps.
        ImportError: matplotlib or torch is not installed.

    Example:
        >>> import ntk_alibi as na
        >>> from ntk_alibi.models import load
        >>> model, tokenizer, _ = load()
        >>> figure = na.plots.attention_maps(
        ...     model,
        ...     tokenizer,
        ...     "Let there be light",
        ...     methods=["original", "ntk:4"],
        ...     heads=[1, 8],
        ... )
        >>> [axes.get_title().splitlines()[1] for axes in figure.axes[:2]]
        ['original', 'ntk:4']
    """
    with drawing_figure() as new_figure:
        from ntk_alibi.models.attention_weights import attention_weights

        several = {"most_maps": MOST_MAPS, "most_cells": FEW_CELLS}
        read = attention_weights(model, tokenizer, text, methods, layers, heads, **several)
        side_by_side = len(read.methods)
        of_a_method = len(read.layers) * len(read.heads)
        best = math.sqrt(1.4 * of_a_method / side_by_side)
        columns = _columns(len(read.heads), best) * side_by_side
        rows = of_a_method * side_by_side // columns
        size = 1.75 * columns + 1.4, 2.05 * rows + 0.9
        figure = new_figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        norm = _norm(read)
        places = product(read.layers, read.heads, read.methods)
        maps = np.moveaxis(read.values, 0, 2).reshape(-1, *read.values.shape[3:])
        for axes, (layer, head, method), values in zip(grid.flat, places, maps, strict=True):
            image = _draw(axes, read, values, norm, 5.5)
            title = f"layer {layer}, head {head}"
            lines = [title] if method is None else [title, wrapped(method.name, TITLE_LETTERS)]
            axes.set_title("\n".join(lines), fontsize=7)
        color_bar(image, figure.axes, _quantity(read))
        figure.suptitle(f"Attention of {_ranges(read)}", fontsize=10)
        figure.supxlabel("key", fontsize=9)
        figure.supylabel("query", fontsize=9)
    return figure


def _columns(heads: int, best: float) -> int:
    """Return the divisor of the number of heads that is nearest to the best number of columns."""
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    return min(divisors, key=lambda n: abs(math.log(n / best)))


def _draw(
    axes: Axes, read: AttentionWeights, values: Any, norm: Normalize, letters: float
) -> AxesImage:
    """Draw one map, with the text of tokens as labels if the letters fit."""
    words = [word.strip()[:LONGEST_WORD] or "␣" for word in read.words]
    tokens, end = len(words), values.shape[0] * read.step - 0.5
    image = heat(axes, values, None, norm=norm, extent=(-0.5, end, end, -0.5))
    axes.set_xlim(-0.5, tokens - 0.5)
    axes.set_ylim(tokens - 0.5, -0.5)
    figure = axes.get_figure(root=True)
    assert figure is not None
    box = axes.get_window_extent()
    fitting = min(box.width, box.height) / figure.dpi * 72 / tokens
    if fitting >= LEAST_LETTERS:
        size = min(letters, fitting)
        axes.set_xticks(range(tokens), words, rotation=90, fontsize=size)
        axes.set_yticks(range(tokens), words, fontsize=size)
    else:
        integer_ticks(axes.xaxis, axes.yaxis, most=12 if letters == USUAL_LETTERS else 5)
        axes.tick_params(labelsize=letters)
    return image


def _norm(read: AttentionWeights) -> Normalize:
    """Return the scale of all maps: linear, or logarithmic if a cell has several tokens."""
    from matplotlib.colors import LogNorm, Normalize

    greatest = float(np.nanmax(read.values))
    if read.step == 1:
        return Normalize(0, greatest)
    return LogNorm(LEAST_SHARE * greatest, greatest, clip=True)


def _quantity(read: AttentionWeights) -> str:
    return "weight" if read.step == 1 else f"greatest weight of {read.step} x {read.step} tokens"


def _ranges(read: AttentionWeights) -> str:
    """Name the ranges of layers and heads, which show how they are counted."""
    layers, heads = read.totals
    return f"a model with layers 0-{layers - 1} and heads 1-{heads}"
