"""Pictures of positions and biases rounded to a dtype, from `ntk_alibi.precision`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ntk_alibi.plots.style import checked_curve, drawing, finish, legend, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def rounded_positions(
    rounded: Mapping[str, tuple[ArrayLike, ArrayLike]], ax: Axes | None = None
) -> Axes:
    """Draw positions rounded to dtypes over the exact positions; steps show collisions.

    Args:
        rounded: a mapping from dtype names to (positions, rounded positions), such as
            `ntk_alibi.precision.last_positions` returns.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes.

    Raises:
        TypeError, ValueError: an argument is wrong.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> ax = na.plots.rounded_positions(
        ...     {"bfloat16": na.precision.last_positions("bfloat16", 1024)}
        ... )
        >>> len(ax.collections) + len(ax.get_lines()) > 0
        True
        >>> plt.close(ax.figure)
    """
    _check_labels("rounded", rounded)
    points = {}
    for label, pair in rounded.items():
        name = f"rounded[{label!r}]"
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"{name} must be a pair of one-dimensional arrays, got {pair!r}")
        first, second = (checked_curve(name, row) for row in pair)
        if len(first) != len(second):
            raise ValueError(
                f"{name} must be two arrays of one length, got {len(first)} and {len(second)}"
            )
        points[label] = first, second
    with drawing(ax) as axes:
        _dots(axes, points)
        finish(axes, "Rounded positions", "position", "position in the dtype")
        legend(axes)
    return axes


def exact_positions(shares: Mapping[str, Mapping[int, float]], ax: Axes | None = None) -> Axes:
    """Draw the share of positions that dtypes represent exactly, over window lengths.

    Args:
        shares: a mapping from dtype names to {window: share}, with shares such as
            `ntk_alibi.precision.exact_fraction` returns.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes.

    Raises:
        TypeError, ValueError: an argument is wrong.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> shares = {n: na.precision.exact_fraction("bfloat16", n) for n in (256, 1024)}
        >>> ax = na.plots.exact_positions({"bfloat16": shares})
        >>> ax.get_lines()[0].get_ydata().tolist()
        [100.0, 50.0]
        >>> plt.close(ax.figure)
    """
    _check_labels("shares", shares)
    for name, points in shares.items():
        _check_labels(f"shares[{name!r}]", points)
        checked_curve(f"shares[{name!r}]", list(points.values()))
    with drawing(ax) as axes:
        for name, points, look in styled(axes, shares):
            percent = [100 * share for share in points.values()]
            axes.plot(list(points), percent, label=name, **look)
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 103)
        finish(axes, "Exactly represented positions", "positions in the window", "exact, %")
        legend(axes, ncols=3)
    return axes


def alibi_rows(rows: Mapping[str, ArrayLike], ax: Axes | None = None) -> Axes:
    """Draw the biases of one query over the distance to its keys; the newest key is at 0.

    Args:
        rows: a mapping from names to biases (keys,), the newest key last, such as
            `ntk_alibi.precision.alibi_row` returns.
        ax: axes to draw into; by default, a new figure.

    Returns:
        The axes.

    Raises:
        TypeError, ValueError: an argument is wrong.
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib.pyplot as plt, ntk_alibi as na
        >>> row = na.precision.alibi_row(0.5, 64, "bfloat16", "relative")
        >>> ax = na.plots.alibi_rows({"relative": row})
        >>> ax.get_ylabel()
        'bias'
        >>> plt.close(ax.figure)
    """
    _check_labels("rows", rows)
    points = {name: checked_curve(f"rows[{name!r}]", row) for name, row in rows.items()}
    with drawing(ax) as axes:
        _dots(axes, {name: (np.arange(1 - row.size, 1), row) for name, row in points.items()})
        finish(axes, "Bias of one query", "key position relative to the query", "bias")
        legend(axes)
    return axes


def _check_labels(name: str, value: Any) -> None:
    """Check a mapping from labels to curves."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping from labels to values, got {value!r}")
    if not value:
        raise ValueError(f"{name} must have at least one label, got {value!r}")


def _dots(axes: Axes, points: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> None:
    """Draw sets of points; later ones have smaller dots, so that earlier ones stay visible."""
    for place, (name, (x, y), look) in enumerate(styled(axes, points)):
        axes.scatter(x, y, s=24.0 / 3**place, color=look["color"], label=name)
