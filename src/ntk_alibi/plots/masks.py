"""Pictures of masks, and of the blocks of keys that a kernel reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks
from ntk_alibi.inspection import effects
from ntk_alibi.masks import BlockMask, block_states
from ntk_alibi.masks.block_mask import KEYS_PER_BLOCK
from ntk_alibi.plots.style import (
    HUES,
    MOST_CELLS,
    check_most,
    drawing,
    finish,
    head_axis,
    integer_ticks,
    legend,
    mixed,
    theme_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ntk_alibi.fused.forward import Stats


def mask(
    query_length: int, key_length: int | None = None, *, ax: Axes | None = None, **options: Any
) -> Axes:
    """Draw which keys each query sees, by the mask that `attention` applies.

    Args:
        query_length: Q, downwards.
        key_length: K, to the right; by default Q. The last query is at the last key. For longer
            texts see `intervals`.
        ax: axes to draw into; by default, a new figure.
        options: causal, window, causal_block, sink, mask (1, 1, Q, K), key_padding_mask (1, keys),
            query_positions and key_positions of `attention`.

    Returns:
        The axes with an image (Q, K) that is 1 where the query sees the key, else 0.

    Raises:
        TypeError, ValueError: an argument is wrong, as for `attention`.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> ax = na.plots.mask(3, window=2)
        >>> ax.get_images()[0].get_array().astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
        >>> plt.close(ax.figure)
    """
    cells = math.prod(effects.map_size(query_length, key_length))
    check_most("query_length x key_length", cells, MOST_CELLS)
    seen = effects.weights(query_length, key_length, **options)[0] > 0
    with drawing(ax, size=(5.0, 4.6)) as axes:
        theme = theme_of(axes)
        _draw_states(axes, seen, [theme.hidden, mixed(HUES[0], theme, 1.0)])
        finish(axes, f"Visible keys: {_options_text(options)}", "key", "query")
    return axes


def block_mask(
    mask: Any, *, batch: int = 0, head: int = 1, block: int = KEYS_PER_BLOCK, ax: Axes | None = None
) -> Axes:
    """Draw which blocks of a mask are visible, partly visible and hidden.

    `attention` skips hidden blocks. A picture of the bias beside it comes from `bias_maps`.

    Args:
        mask: (batch or 1, heads or 1, Q, K) booleans, or a `BlockMask`, as `attention` takes them.
        batch: row of the mask.
        head: head of the mask, counted from 1.
        block: queries and keys of a block; 64 keys are what the kernels read at once.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with an image of the blocks: 2 where all pairs are visible, 1 where some are, 0
        where none is.

    Raises:
        TypeError, ValueError: an argument is wrong.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, numpy as np, ntk_alibi as na
        >>> ax = na.plots.block_mask(np.tri(192, dtype=bool)[None, None])
        >>> ax.get_images()[0].get_array().tolist()
        [[1, 0, 0], [2, 1, 0], [2, 2, 1]]
        >>> plt.close(ax.figure)
    """
    given = mask if isinstance(mask, BlockMask) else BlockMask(mask)
    if 0 in given.shape:
        raise ValueError(f"mask must have pairs to draw, got shape {given.shape}")
    row = _checks.integer("batch", batch, minimum=0, maximum=given.shape[0] - 1)
    own = _checks.integer("head", head, minimum=1, maximum=given.shape[1]) - 1
    size = _checks.integer("block", block, minimum=1)
    states = block_states(_checks.constant("mask", given.mask)[row, own], size)
    check_most("blocks of queries x blocks of keys", states.size, MOST_CELLS)
    with drawing(ax, size=(5.0, 4.6)) as axes:
        from matplotlib.patches import Patch

        theme = theme_of(axes)
        colors: list[Any] = [theme.hidden, mixed(HUES[5], theme, 0.6), mixed(HUES[0], theme, 1.0)]
        _draw_states(axes, states, colors)
        finish(axes, f"Blocks of {size} x {size} pairs", "block of keys", "block of queries")
        names = "hidden", "partly visible", "visible"
        handles = [Patch(color=x, label=name) for name, x in zip(names, colors, strict=True)]
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)
    return axes


def intervals(
    query_length: int, key_length: int | None = None, *, ax: Axes | None = None, **options: Any
) -> Axes:
    """Draw the keys that each query sees as intervals, for texts too long for cells.

    Args:
        query_length: Q, downwards.
        key_length: K, to the right; by default Q. The last query is at the last key.
        ax: axes to draw into; by default, a new figure.
        options: as for `mask`.

    Returns:
        The axes with one stroke for each interval.

    Raises:
        TypeError, ValueError: an argument is wrong, as for `attention`.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> ax = na.plots.intervals(16, window=4, sink=1)
        >>> len(ax.collections[0].get_paths())
        27
        >>> plt.close(ax.figure)
    """
    _, keys = effects.map_size(query_length, key_length)
    check_most("query_length x key_length", query_length * keys, _checks.MAX_ENTRIES)
    runs = effects.visible_intervals(query_length, key_length, **options)
    with drawing(ax, size=(5.0, 4.6)) as axes:
        from matplotlib.collections import PolyCollection

        half = 0.35 if query_length <= 64 else 0.5
        query, left, right = runs[:, 0], runs[:, 1] - 0.5, runs[:, 2] + 0.5
        top, bottom = query - half, query + half
        corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
        color = mixed(HUES[0], theme_of(axes), 1.0)
        strokes = list(np.moveaxis(np.array(corners), 2, 0))
        axes.add_collection(
            PolyCollection(strokes, facecolors=[color], linewidths=0, antialiased=half < 0.5)
        )
        axes.set_xlim(-0.5, keys - 0.5)
        axes.set_ylim(query_length - 0.5, -0.5)
        integer_ticks(axes.xaxis, axes.yaxis)
        finish(axes, f"Visible keys: {_options_text(options)}", "key", "query")
    return axes


def blocks(stats: Stats, *, batch: int = 0, ax: Axes | None = None) -> Axes:
    """Draw the share of blocks of keys that the kernel read in each head, and skipped.

    Args:
        stats: from `attention(..., return_stats=True)`.
        batch: row of the batch.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with a bar for each head: read blocks below skipped ones, in % of visible blocks.

    Raises:
        TypeError, ValueError: an argument is wrong.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, numpy as np, ntk_alibi as na
        >>> query, key, value = np.ones((3, 1, 4, 512, 16), np.float32)
        >>> stats = na.attention(query, key, value, na.ALiBi(4), return_stats=True)[1]
        >>> ax = na.plots.blocks(stats)
        >>> heights = [bar.get_height() for bar in ax.containers[0]]
        >>> bool(np.allclose(heights, 100 * stats.share[0]))
        True
        >>> plt.close(ax.figure)
    """
    if not hasattr(stats, "visited") or not hasattr(stats, "visible"):
        raise TypeError(f"stats must come from attention(..., return_stats=True), got {stats!r}")
    row = _checks.integer("batch", batch, minimum=0, maximum=len(stats.visible) - 1)
    share = 100 * stats.share[row]
    heads = np.arange(1, len(share) + 1)
    with drawing(ax) as axes:
        theme = theme_of(axes)
        axes.bar(heads, share, color=mixed(HUES[0], theme, 1.0), label="read; its % above")
        skipped = mixed(HUES[4], theme, 0.55)
        axes.bar(heads, 100 - share, bottom=share, color=skipped, hatch="//", label="skipped")
        for head, percent in enumerate(share.tolist(), 1):
            if len(heads) <= 16:
                axes.text(head, 101.5, f"{percent:.0f}", ha="center", fontsize=8)
        axes.set_ylim(0, 108)
        axes.set_yticks(range(0, 101, 25))
        head_axis(axes, len(heads))
        finish(axes, "Key blocks read by the kernel", "head", "% of the visible blocks")
        legend(axes)
    return axes


def _draw_states(axes: Axes, states: NDArray[Any], colors: list[Any]) -> None:
    """Draw states, counted from 0, as square cells in the colour of each state."""
    from matplotlib.colors import ListedColormap

    axes.imshow(
        states,
        cmap=ListedColormap(colors),
        vmin=0,
        vmax=len(colors) - 1,
        interpolation="nearest",
        aspect="equal",
    )
    axes.grid(False)
    integer_ticks(axes.xaxis, axes.yaxis)


def _options_text(options: dict[str, Any]) -> str:
    """Return options as text: scalars with their values, arrays by their names."""
    scalars = {k: v for k, v in options.items() if isinstance(v, bool | int)}
    others = [k.replace("_", " ") for k, v in options.items() if k not in scalars and v is not None]
    assignments = [f"{name} = {value}" for name, value in scalars.items()]
    return ", ".join(assignments + others) or "causal"
