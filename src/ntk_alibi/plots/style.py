"""The style of all pictures: two themes, colours for any colour vision, and drawing helpers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ntk_alibi import _checks, methods

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


@dataclass(frozen=True)
class Theme:
    """Colours of one theme.

    Attributes:
        background: colour of figure and axes.
        text: colour of text and of curves without a hue.
        quiet: colour of lines and ticks that only guide the eye.
        hidden: colour of cells without a number: masked keys, missing measurements.
    """

    background: str
    text: str
    quiet: str
    hidden: str


THEMES = {
    "light": Theme("#ffffff", "#1c1e21", "#7a7f87", "#d8dade"),
    "dark": Theme("#16181c", "#eceef1", "#9298a1", "#3c4048"),
}

#: Okabe and Ito 2008 (jfly.uni-koeln.de/color): hues that differ for any colour vision. The last
#: two are not theirs.
HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7A00", "#7F63B8")
MARKERS = "osvD^Pd"

#: Colour map that is readable for any colour vision and in greyscale.
HEAT = "cividis"

#: Hue, marker and line of each kind of scaling. Dynamic scalings are dashed, so that a curve below
#: them stays visible where both agree.
KINDS = {
    "interpolation": (HUES[1], "v", "-"),
    "ntk": (HUES[0], "o", "-"),
    "dynamic-ntk": (HUES[2], "s", "--"),
    "dynamic-interpolation": (HUES[3], "D", "--"),
    "flat": (HUES[4], "^", "-"),
    "dynamic-flat": (HUES[5], "P", "--"),
    "knee": (HUES[7], ">", "-."),
}

#: Lines of the second method of a kind and of later ones: on another curve, both stay visible.
REPEATED_LINES = (":", "-.", "-")


@contextmanager
def style(theme: Literal["light", "dark"] = "light") -> Iterator[None]:
    """Set the style of everything drawn in the block, including axes that the caller makes.

    Args:
        theme: "light" or "dark".

    Raises:
        ValueError: theme is neither "light" nor "dark".
        ImportError: matplotlib is not installed.

    Example:
        >>> import ntk_alibi as na
        >>> with na.plots.style("dark"):
        ...     ax = na.plots.slopes(16)
        >>> ax.get_facecolor()[:3] < (0.2, 0.2, 0.2)
        True
        >>> import matplotlib.pyplot as plt
        >>> plt.close(ax.figure)
    """
    colors = THEMES[_checks.choice("theme", theme, tuple(THEMES))]
    matplotlib = _matplotlib()
    with matplotlib.rc_context(_settings(colors)):
        yield
        interactive = matplotlib.is_interactive()
    # The first figure loads the backend. That of notebooks turns interactive mode on and shows
    # nothing without it, but rc_context would reset it.
    matplotlib.interactive(interactive)


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        message = "pictures need matplotlib: pip install 'ntk-alibi[plot]'"
        raise ImportError(message) from error
    return matplotlib


def _settings(theme: Theme) -> dict[str, Any]:
    faces = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    texts = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    lines = ("axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    return {
        **dict.fromkeys(faces, theme.background),
        **dict.fromkeys(texts, theme.text),
        **dict.fromkeys(lines, theme.quiet),
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 11,
        "figure.dpi": 110,
        "figure.figsize": (6.4, 4.0),
        "font.size": 10,
        "grid.alpha": 0.25,
        "image.cmap": HEAT,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "lines.markersize": 5,
    }


#: Cells that a picture may show; more take minutes to draw, and no screen has as many.
MOST_CELLS = 2**24


def check_most(what: str, count: int, limit: int) -> None:
    """Check a number of numbers or cells before they are computed."""
    if count > limit:
        raise ValueError(f"{what} must be at most {limit} in a picture, got {count}")


def map_size(query_length: int, key_length: int | None) -> tuple[int, int]:
    """Return the checked numbers of queries and keys of a map; by default they are equal."""
    queries = _checks.integer("query_length", query_length, minimum=1)
    if key_length is None:
        return queries, queries
    return queries, _checks.integer("key_length", key_length, minimum=1)


@contextmanager
def drawing(ax: Axes | None, *, size: tuple[float, float] | None = None) -> Iterator[Axes]:
    """Yield the caller's axes or new ones, with the style of their theme set."""
    _matplotlib()
    if ax is not None and not hasattr(ax, "get_xlabel"):
        raise TypeError(f"ax must be one matplotlib Axes, or None, got {type(ax).__name__}")
    with style(_theme_name(ax)):
        if ax is None:
            import matplotlib.pyplot as plt

            figure, ax = plt.subplots(layout="constrained", figsize=size)
            colors = theme_of(ax)  # matplotlib makes ticks late, after the style's block
            ax.tick_params(which="both", color=colors.quiet, labelcolor=colors.text)
            try:
                yield ax
            except BaseException:
                plt.close(figure)
                raise
        else:
            yield ax


@contextmanager
def drawing_figure() -> Iterator[type[Figure]]:
    """Yield the constructor of figures that pyplot does not manage, with the style set."""
    _matplotlib()
    with style(_theme_name(None)):
        from matplotlib.figure import Figure

        yield Figure


def theme_of(ax: Axes) -> Theme:
    """Return the theme that suits the background of axes."""
    return THEMES[_theme_name(ax)]


def _theme_name(ax: Axes | None) -> Literal["light", "dark"]:
    from matplotlib import colors, rcParams

    if ax is None:
        face = rcParams["figure.facecolor"]
    else:
        figure = ax.get_figure(root=True)
        see_through = ax.patch.get_alpha() == 0 or colors.to_rgba(ax.get_facecolor())[3] < 0.5
        face = figure.get_facecolor() if see_through and figure else ax.get_facecolor()
    red, green, blue, opaque = colors.to_rgba(face)
    dark = opaque >= 0.5 and 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
    return "dark" if dark else "light"


def finish(ax: Axes, title: str, xlabel: str, ylabel: str) -> None:
    """Set title and axis labels, except those that the caller has already set."""
    if not ax.get_title():
        ax.set_title(title)
    ax.set_xlabel(ax.get_xlabel() or xlabel)
    ax.set_ylabel(ax.get_ylabel() or ylabel)


def wrapped(text: str, letters: int) -> str:
    """Return a title in lines of at most about so many letters, which break at spaces."""
    return textwrap.fill(text, letters, break_long_words=False, break_on_hyphens=False)


def head_axis(ax: Axes, heads: int) -> None:
    """Scale the x axis to heads 1 to `heads`, with integer ticks."""
    integer_ticks(ax.xaxis)
    ax.set_xlim(0.4, heads + 0.6)


def integer_ticks(*sides: Axis, most: int = 12) -> None:
    """Put ticks at integers only, at most about so many of them."""
    from matplotlib.ticker import MaxNLocator

    for side in sides:
        side.set_major_locator(MaxNLocator(integer=True, nbins=most, min_n_ticks=1))


def legend(ax: Axes, *, ncols: int = 2, below: float = -0.17) -> None:
    """Put a legend below the axes, where it covers nothing, if there are several labels."""
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) > 1:
        ax.legend(
            handles,
            labels,
            loc="upper center",
            bbox_to_anchor=(0.5, below),
            ncols=min(ncols, len(labels)),
        )


def shared_legend(figure: Figure, *, ncols: int) -> None:
    """Replace the legends of all axes by one below them."""
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes_legend = axes.get_legend()
        if axes_legend is not None:
            axes_legend.remove()
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=ncols)


def heat(ax: Axes, values: Any, label: str | None, **options: Any) -> AxesImage:
    """Draw numbers as colours, NaN as hidden cells, with a colour bar if there is a label."""
    import matplotlib
    import numpy as np

    shown = np.ma.masked_invalid(values)
    colormap = matplotlib.colormaps[HEAT].with_extremes(bad=theme_of(ax).hidden)
    ax.grid(False)
    image = ax.imshow(shown, cmap=colormap, interpolation="nearest", aspect="auto", **options)
    if label is not None:
        color_bar(image, [ax], label)
    return image


def color_bar(image: AxesImage, beside: Sequence[Axes], label: str) -> None:
    """Draw the colour bar of an image beside the axes that share its colours."""
    figure = beside[0].get_figure()
    assert figure is not None
    bar = figure.colorbar(image, ax=beside, label=label)
    bar.outline.set_visible(False)
    colors = theme_of(beside[0])
    bar.ax.tick_params(color=colors.quiet, labelcolor=colors.text)


def band(
    ax: Axes,
    x: Any,
    middle: Any,
    half_width: Any,
    color: Any,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw a pale band of the given half-width around a curve, within limits."""
    low, high = middle - half_width, middle + half_width
    if limits is not None:
        low, high = (edge.clip(*limits) for edge in (low, high))
    ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def mark_training_length(ax: Axes, x: float) -> None:
    """Draw a dotted vertical line at the training length, below the curves."""
    ax.axvline(x, color=theme_of(ax).quiet, linestyle=":", zorder=0)


def line_styles(ax: Axes, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return a colour, marker and line style for each of several kinds of methods.

    "original" gets the colour of text, a kind of `KINDS` gets its hue, and any other kind gets the
    next free hue. Several of the same kind have their hue mixed with the colour of text, up to half
    of it, and all but the first another marker and line.
    """
    theme = theme_of(ax)
    reserved = [KINDS[kind] for kind in kinds if kind in KINDS]
    free_hues = [hue for hue in HUES if hue not in {look[0] for look in reserved}]
    free_markers = [marker for marker in MARKERS if marker not in {look[1] for look in reserved}]
    result: list[dict[str, Any]] = []
    others = repeated = 0
    for number, kind in enumerate(kinds):
        strength = 1.0
        if kind == "original":
            result.append({"color": theme.text, "marker": "x", "linestyle": "-"})
            continue
        if kind in KINDS:
            hue, marker, line = KINDS[kind]
            before, after = kinds[:number].count(kind), kinds[number + 1 :].count(kind)
            strength = 1.0 - 0.5 * before / max(1, before + after)
            if before:
                line = REPEATED_LINES[(before - 1) % len(REPEATED_LINES)]
                repeated += 1
                marker = free_markers[-repeated % len(free_markers)]
        else:
            turn, place = divmod(others, len(free_hues))
            hue, line = free_hues[place], ("-", "-.", ":")[turn % 3]
            marker = free_markers[(place + turn) % len(free_markers)]
            others += 1
        color = mixed(hue, theme, strength, theme.text)
        result.append({"color": color, "marker": marker, "linestyle": line})
    return result


def mixed(
    hue: str, theme: Theme, strength: float, into: str | None = None
) -> tuple[float, float, float]:
    """Return a hue blended into a colour: strength 1 is the pure hue.

    The colour is the theme's background by default. Hues of the dark theme are lighter.
    """
    from matplotlib.colors import to_rgb

    lift = 0.3 if theme is THEMES["dark"] else 0.0
    full = [lift + (1 - lift) * part for part in to_rgb(hue)]
    ground = to_rgb(into or theme.background)
    red, green, blue = (
        strength * part + (1 - strength) * behind for part, behind in zip(full, ground, strict=True)
    )
    return red, green, blue


def labelled(things: Any) -> dict[str, Any]:
    """Return one object, several, or a mapping of labels to objects as a mapping.

    An unlabelled scaling has its label in tables, "NTK a=4"; None is "original". A bias has a short
    repr in which its scaling has that label. If another object has the label already, as scalings
    of two training lengths do, the short repr is the label.
    """
    if isinstance(things, Mapping | list | tuple) and not things:
        raise ValueError(f"a picture must show at least one scaling or bias, got {things!r}")
    if isinstance(things, Mapping):
        return dict(things)
    result: dict[str, Any] = {}
    for thing in things if isinstance(things, list | tuple) else [things]:
        label = _label(thing)
        taken = label in result and result[label] != thing
        result[_short(repr(thing)) if taken else label] = thing
    return result


def _label(thing: Any) -> str:
    scaling = getattr(thing, "scaling", None)
    if thing is None or methods.kind_of(thing):
        return methods.label_of(thing)
    if methods.kind_of(scaling):
        before, _, after = repr(thing).partition(repr(scaling))
        return f"{_short(before)}{methods.label_of(scaling)}{_short(after)}"
    return _short(repr(thing))


def _short(text: str) -> str:
    """Return a repr without argument names and default values, such as `ALiBi(8)`."""
    bare = re.sub(r"\b\w+=", "", text)
    bare = re.sub(r", (None|'causal'|'sequence')(?=[,)])", "", bare)
    return re.sub(r"\.0(?=[,)])", "", bare)
