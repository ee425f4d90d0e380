"""Pictures of slopes, of biases, and of how far each head reaches."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi.inspection import effects
from ntk_alibi.methods import ORIGINAL, as_scaling, find_kind
from ntk_alibi.plots.labels import labelled
from ntk_alibi.plots.style import (
    MOST_CELLS,
    check_most,
    drawing,
    finish,
    head_axis,
    heat,
    legend,
    styled,
    theme_of,
)
from ntk_alibi.scaling import NTK, AnyScaling, Interpolation, is_dynamic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

#: Greatest number of cells of all maps of a picture, unless there are very many heads.
MAP_CELLS = 2**22

#: Scalings that `slopes` compares by default.
COMPARED = (None, Interpolation(4.0), NTK(4.0))


def slopes(
    num_heads: int,
    scalings: Mapping[str, Any] | Sequence[AnyScaling | None] | AnyScaling | None = COMPARED,
    *,
    length: int | None = None,
    rule: Literal["press", "geometric"] = "press",
    ax: Axes | None = None,
) -> Axes:
    """Draw the slopes of all heads by several scalings.

    Args:
        num_heads: H.
        scalings: what `scaling` of `ALiBi` takes, several of them, or a mapping of labels to them;
            None is the unscaled slopes.
        length: number of tokens, for dynamic scalings; by default, their training length.
        rule: rule of the unscaled slopes, as for `alibi_slopes`.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with a line for each scaling, slopes on a logarithmic axis over heads 1..H.

    Raises:
        TypeError, ValueError: an argument is wrong, as for `alibi_slopes`.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> ax = na.plots.slopes(8, [None, na.NTK(4.0)])
        >>> [line.get_label() for line in ax.get_lines()]
        ['original', 'ntk:4']
        >>> plt.close(ax.figure)
    """
    if isinstance(scalings, Mapping) and "alibi_type" not in scalings:
        named = {label: as_scaling(scaling) for label, scaling in labelled(scalings).items()}
    else:
        several = scalings if isinstance(scalings, list | tuple) else [scalings]
        named = labelled([as_scaling(scaling) for scaling in several])
    with drawing(ax) as axes:
        for label, scaling, look in _styled(axes, named):
            values = effects.slopes_at(num_heads, scaling, _length(scaling, length), rule)
            axes.plot(np.arange(1, len(values) + 1), values, label=label, **look)
        axes.set_yscale("log", base=2)
        head_axis(axes, num_heads)
        finish(axes, f"Slopes{_at_length(named.values(), length)}", "head", "slope")
        legend(axes)
    return axes


def receptive_field(
    biases: Any,
    *,
    shares: Sequence[float] = (1 / math.e, 0.01),
    longest: int = effects.LONGEST,
    length: int | None = None,
    side: Literal["behind", "ahead"] = "behind",
    ax: Axes | None = None,
) -> Axes:
    """Draw how far each head reaches: the distances at which its weight falls to given shares.

    Args:
        biases: a bias object with num_heads and tensor(query_length, key_length), several, or a
            mapping of labels to them.
        shares: shares of the greatest weight, each between 0 and 1; a stroke joins the nearest and
            the farthest of their distances.
        longest: number of distances to search, from 0 on; heads that reach farther end in an arrow.
        length: number of tokens, for dynamic scalings; by default, the training length.
        side: "behind" or "ahead".
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with distances on a logarithmic axis over heads.

    Raises:
        TypeError, ValueError: an argument is wrong.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> ax = na.plots.receptive_field(na.ALiBi(4), shares=[0.01])
        >>> ax.get_lines()[0].get_ydata().round(1).tolist()
        [18.4, 73.7, 294.7, 1178.9]
        >>> plt.close(ax.figure)
    """
    named = labelled(biases)
    _check_distances(named.values(), longest)
    with drawing(ax) as axes:
        for index, (label, bias, look) in enumerate(_styled(axes, named)):
            given: Any = {"longest": longest, "length": _length(bias, length), "side": side}
            reach = np.array([effects.receptive_field(bias, share, **given) for share in shares])
            labels = [f"{label}: {_share_text(share)}" for share in shares]
            beside = 0.5 * ((index + 0.5) / len(named) - 0.5)
            _draw_reach(axes, reach, float(longest), beside, labels, look)
        axes.set_yscale("log", base=2)
        head_axis(axes, int(reach.shape[1]))
        title = f"Receptive field {side}{_at_length(named.values(), length)}"
        finish(axes, title, "head", "distance, tokens")
        legend(axes)
    return axes


def bias_by_distance(
    biases: Any,
    longest: int = 512,
    *,
    heads: Sequence[int] | None = None,
    length: int | None = None,
    side: Literal["behind", "ahead"] = "behind",
    ax: Axes | None = None,
) -> Axes:
    """Draw biases as functions of distance.

    Args:
        biases: as for `receptive_field`.
        longest: number of distances, from 0 on.
        heads: the heads to draw, counted from 1; by default all.
        length: as for `receptive_field`.
        side: "behind" or "ahead".
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with a line for each bias and head; earlier heads are paler.

    Raises:
        TypeError, ValueError: an argument is wrong.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> ax = na.plots.bias_by_distance(na.ALiBi(8), 64, heads=[4, 8])
        >>> len(ax.get_lines())
        2
        >>> plt.close(ax.figure)
    """
    named = labelled(biases)
    _check_distances(named.values(), longest)
    with drawing(ax) as axes:
        for label, bias, look in _styled(axes, named):
            values = effects.bias_by_distance(
                bias, longest, length=_length(bias, length), side=side
            )
            chosen = _checks.heads(heads, len(values))
            for place, head in enumerate(chosen, 1):
                axes.plot(
                    np.arange(longest),
                    np.where(np.isinf(values[head]), np.nan, values[head]),
                    color=look["color"],
                    linestyle=look["linestyle"],
                    alpha=0.25 + 0.75 * place / len(chosen),
                    label=label if place == len(chosen) else None,
                )
        finish(axes, f"Bias by distance {side}", "distance, tokens", "bias")
        legend(axes)
    return axes


def bias_maps(
    bias: Any,
    query_length: int = 32,
    key_length: int | None = None,
    *,
    heads: Sequence[int] | None = None,
    quantity: Literal["bias", "weight"] = "bias",
    ax: Axes | None = None,
) -> Axes:
    """Draw the bias of each head for all queries and keys, as maps side by side.

    Args:
        bias: an object with num_heads and tensor(query_length, key_length), such as `ALiBi`.
        query_length: Q, downwards.
        key_length: K, to the right; by default Q. The last query is at the last key. If a picture
            has no pixels for all queries and keys, every n-th is drawn.
        heads: the heads to draw, counted from 1; by default all.
        quantity: "bias", or "weight" for its exponential.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes with one image of the maps of all heads. Masked keys are grey.

    Raises:
        TypeError, ValueError: an argument is wrong.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> ax = na.plots.bias_maps(na.ALiBi(8), 16)
        >>> [text.get_text() for text in ax.texts][:3]
        ['head 1', 'head 2', 'head 3']
        >>> plt.close(ax.figure)
    """
    effects.check_bias(bias)
    _checks.choice("quantity", quantity, ("bias", "weight"))
    chosen, values = _sampled_maps(bias, query_length, key_length, heads)
    shown = values if quantity == "bias" else np.exp(values)
    _, queries, keys = values.shape
    columns = min(len(chosen), max(1, math.ceil(math.sqrt(len(chosen) * 1.5))))
    rows = math.ceil(len(chosen) / columns)
    gap = max(1, keys // 12)
    above = max(1, math.ceil((0.04 + 0.04 * rows) * queries))
    sheet = np.full((rows * (queries + above), columns * (keys + gap) - gap), np.nan)
    with drawing(ax, size=(6.4, min(9.0, 1.2 + 5.2 * sheet.shape[0] / sheet.shape[1]))) as axes:
        for place, head in enumerate(chosen):
            row, column = divmod(place, columns)
            top, left = row * (queries + above) + above, column * (keys + gap)
            sheet[top : top + queries, left : left + keys] = np.where(
                np.isfinite(values[place]), shown[place], np.inf
            )
            label = f"head {head + 1}"
            axes.text(left + keys / 2 - 0.5, top - 0.6, label, ha="center", va="bottom", fontsize=8)
        _draw_sheet(axes, sheet, quantity, _norm(shown) if quantity == "bias" else None)
        axes.set_axis_off()
        (label,) = labelled(bias)
        hidden = "; grey: keys that are not seen" if not np.isfinite(values).all() else ""
        title = f"{quantity.capitalize()} of {label}\nqueries down, keys to the right{hidden}"
        finish(axes, title, "", "")
    return axes


def _draw_reach(
    axes: Axes,
    reach: NDArray[np.float64],
    longest: float,
    beside: float,
    labels: Sequence[str],
    look: dict[str, Any],
) -> None:
    """Draw reaches (shares, heads): a stroke for each head, which ends in an arrow at infinity."""
    heads = np.arange(1, reach.shape[1] + 1) + beside
    ends = np.where(np.isinf(reach), longest, reach)
    # Markers of later shares are hollow, which "x" cannot be.
    color, marker = look["color"], look["marker"].replace("x", "o")
    axes.vlines(heads, ends.min(axis=0), ends.max(axis=0), color=color, alpha=0.45)
    for place, (label, row) in enumerate(zip(labels, reach, strict=True)):
        axes.plot(
            heads,
            np.where(np.isinf(row), np.nan, row),
            linestyle="",
            color=color,
            marker=marker,
            markerfacecolor=theme_of(axes).background if place else color,
            label=label,
        )
    beyond = np.isinf(reach).any(axis=0)
    axes.plot(heads[beyond], ends.max(axis=0)[beyond], "^", color=color)


def _check_distances(biases: Collection[Any], longest: int) -> None:
    distances = _checks.integer("longest", longest, minimum=1)
    for bias in biases:
        effects.check_bias(bias)
        check_most("heads x longest", bias.num_heads * distances, _checks.MAX_ENTRIES)


def _sampled_maps(
    bias: Any, query_length: int, key_length: int | None, heads: Sequence[int] | None
) -> tuple[list[int], NDArray[np.float64]]:
    """Return heads and biases (heads, queries, keys), of every n-th query and key if many."""
    queries, keys = effects.map_size(query_length, key_length)
    of_all = bias.num_heads * queries * keys
    check_most("heads x query_length x key_length", of_all, _checks.MAX_ENTRIES)
    chosen = _checks.heads(heads, bias.num_heads)
    longest = max(32, math.isqrt(MAP_CELLS // len(chosen)))
    rows, columns = (np.arange(n - 1, -1, -math.ceil(n / longest))[::-1] for n in (queries, keys))
    check_most("cells of all heads", len(chosen) * rows.size * columns.size, MOST_CELLS)
    values = _arrays.to_numpy(bias.tensor(queries, keys))[0]
    return chosen, values[np.ix_(np.array(chosen), rows, columns)].astype(np.float64)


def _norm(values: NDArray[np.float64]) -> Normalize | None:
    """Return a scale of colours, linear up to the maximum of the flattest head, then logarithmic.

    So heads of very different slopes stay visible. None where a linear scale suffices.
    """
    from matplotlib.colors import SymLogNorm

    sizes = np.abs(np.where(np.isfinite(values), values, 0.0)).max(axis=(1, 2))
    if len(sizes) < 2 or sizes.min() == 0.0 or sizes.max() < 10 * sizes.min():
        return None
    return SymLogNorm(linthresh=float(sizes.min()), linscale=0.5)


def _draw_sheet(
    axes: Axes, sheet: NDArray[np.float64], quantity: str, norm: Normalize | None
) -> None:
    """Draw a sheet of maps: infinities are masked keys, NaN the gaps between maps."""
    from matplotlib.colors import to_rgba

    image = heat(axes, sheet, quantity, norm=norm)
    image.set_cmap(image.get_cmap().with_extremes(bad=(0, 0, 0, 0)))
    grey = np.zeros((*sheet.shape, 4), np.float32)
    grey[np.isinf(sheet)] = to_rgba(theme_of(axes).hidden)
    axes.imshow(grey, interpolation="nearest", aspect="auto", zorder=-1)


def _length(thing: Any, length: int | None) -> int | None:
    """Return the length of text for a dynamic scaling: `length`, or its training length."""
    scaling = getattr(thing, "scaling", thing)
    return getattr(scaling, "train_length", None) if length is None else length


def _at_length(things: Collection[Any], length: int | None) -> str:
    """Return the part of a title that names the length for dynamic scalings, if there are any."""
    dynamic = [x for x in things if is_dynamic(getattr(x, "scaling", x))]
    lengths = {_length(x, length) for x in dynamic}
    if not lengths:
        return ""
    if len(lengths) > 1:
        return ", dynamic ones at their training lengths"
    return f", dynamic ones at {lengths.pop()} tokens"


def _styled(axes: Axes, named: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each label, its thing and the line style of the thing's kind."""
    return styled(axes, named, map(_kind, named.values()))


def _kind(thing: Any) -> str:
    scaling = getattr(thing, "scaling", thing)
    if scaling is None and getattr(thing, "slopes", None) is None:
        return ORIGINAL
    return find_kind(scaling) or type(thing).__name__


def _share_text(share: float) -> str:
    return "1/e" if math.isclose(share, 1 / math.e) else f"{100 * share:g} %"
