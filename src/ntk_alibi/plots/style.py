"""The style of all pictures: themes, colours for any colour vision, axes, legends and bars."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks, _installed

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
        text: colour of text, and of curves without a hue.
        ticks: colours of the labels of ticks, at the x axis and at the y axis.
        quiet: colour of lines and ticks that guide the eye.
        hidden: colour of cells without a value: masked keys, missing measurements.
        lift: how much hues are lightened, from 0 to 1.
    """

    background: str
    text: str
    ticks: tuple[str, str]
    quiet: str
    hidden: str
    lift: float


#: A transparent picture is shown on white and on black, so its grey has the same contrast to both.
#: JupyterLab gives a picture a background if all labels of its ticks are lighter than #7f7f7f, or
#: all are darker, so there are some of each.
THEMES = {
    "light": Theme("#ffffff", "#1c1e21", ("#1c1e21", "#1c1e21"), "#7a7f87", "#d8dade", 0.0),
    "dark": Theme("#16181c", "#eceef1", ("#eceef1", "#eceef1"), "#9298a1", "#3c4048", 0.3),
    "transparent": Theme("none", "#797979", ("#797979", "#808080"), "#868a90", "#80808050", 0.12),
}

#: Hues that differ for any colour vision, by Okabe and Ito 2008 (jfly.uni-koeln.de/color), and two
#: more.
HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7A00", "#7F63B8")
MARKERS = "osvD^Pd>"

#: A colour map for any colour vision, also in greyscale.
HEAT = "cividis"

#: Hue, marker and line of each kind of method. Dynamic ones are dashed, so that a curve below them
#: stays visible where both agree.
KINDS = {
    "interpolation": (HUES[1], "v", "-"),
    "ntk": (HUES[0], "o", "-"),
    "dynamic-ntk": (HUES[2], "s", "--"),
    "dynamic-interpolation": (HUES[3], "D", "--"),
    "flat": (HUES[4], "^", "-"),
    "dynamic-flat": (HUES[5], "P", "--"),
}

#: Lines of the second method of a kind and later ones, which stay visible where curves agree.
REPEATED_LINES = (":", "-.", "-")


@contextmanager
def style(theme: Literal["light", "dark", "transparent"] = "light") -> Iterator[None]:
    """Set the style of everything drawn in the block, including axes that the caller makes.

    Args:
        theme: "light", "dark", or "transparent", which has no background and suits light and dark
            pages. Outside of a block pictures are transparent, unless matplotlib's settings have
            another background than its default.

    Raises:
        ValueError: theme is none of these.
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
    with _installed.needed_by("a picture"):
        import matplotlib
    with matplotlib.rc_context(_settings(colors)):
        yield
        interactive = matplotlib.is_interactive()
    # The first figure loads the backend. In notebooks it turns interactive mode on, without which
    # nothing is shown, but rc_context would reset it.
    matplotlib.interactive(interactive)


def _settings(theme: Theme) -> dict[Any, Any]:
    faces = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    texts = ("text.color", "axes.labelcolor")
    lines = ("axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    return {
        **dict.fromkeys(faces, theme.background),
        **dict.fromkeys(texts, theme.text),
        **dict(zip(("xtick.labelcolor", "ytick.labelcolor"), theme.ticks, strict=True)),
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


#: Greatest number of cells of a picture; more take minutes to draw, and no screen has as many.
MOST_CELLS = 2**24


def check_most(what: str, count: int, limit: int) -> None:
    """Refuse a picture of too many values or cells before they are computed."""
    if count > limit:
        raise ValueError(f"{what} must be at most {limit} in a picture, got {count}")


def checked_curve(name: str, values: Any, count: int | None = None) -> NDArray[np.float64]:
    """Return the values of a curve as an array, with NaN for None; check how many they are."""
    try:
        array = np.array(list(values), np.float64)
    except (TypeError, ValueError):
        array = np.zeros(())
    if array.ndim != 1:
        raise TypeError(f"{name} must be a one-dimensional array, got {values!r}")
    if count is not None and array.size != count:
        raise ValueError(f"{name} must have {count} values, got {array.size} ({values!r})")
    return array


@contextmanager
def drawing(ax: Axes | None, *, size: tuple[float, float] | None = None) -> Iterator[Axes]:
    """Yield the given axes or new ones, in the style of their theme."""
    if ax is not None and not hasattr(ax, "get_xlabel"):
        raise TypeError(f"ax must be one matplotlib Axes, or None, got {type(ax).__name__}")
    with style(_theme_name(ax)):
        if ax is None:
            import matplotlib.pyplot as plt

            figure, ax = plt.subplots(layout="constrained", figsize=size)
            _colour_ticks(ax)
            try:
                yield ax
            except BaseException:
                plt.close(figure)
                raise
        else:
            yield ax


def _colour_ticks(ax: Axes) -> None:
    """Set the colours of ticks, which matplotlib would read after the block of the style."""
    theme = theme_of(ax)
    for axis, labels in zip((ax.xaxis, ax.yaxis), theme.ticks, strict=True):
        axis.set_tick_params(which="both", color=theme.quiet, labelcolor=labels)


@contextmanager
def drawing_figure() -> Iterator[type[Figure]]:
    """Yield the class of figures that pyplot does not manage, with the style set."""
    with style(_theme_name(None)):
        from matplotlib.figure import Figure

        yield Figure


def theme_of(ax: Axes) -> Theme:
    """Return the theme that suits the background of axes."""
    return THEMES[_theme_name(ax)]


def _theme_name(ax: Axes | None) -> Literal["light", "dark", "transparent"]:
    with _installed.needed_by("a picture"):
        from matplotlib import colors, rcParams, rcParamsDefault

    if ax is None:
        face = rcParams["figure.facecolor"]
        if face == rcParamsDefault["figure.facecolor"]:
            return "transparent"
    else:
        figure = ax.get_figure(root=True)
        see_through = ax.patch.get_alpha() == 0 or colors.to_rgba(ax.get_facecolor())[3] < 0.5
        face = figure.get_facecolor() if see_through and figure else ax.get_facecolor()
    red, green, blue, opaque = colors.to_rgba(face)
    if opaque < 0.5:
        return "transparent"
    return "dark" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "light"


def finish(ax: Axes, title: str, xlabel: str, ylabel: str) -> None:
    """Set title and axis labels that are not set yet."""
    if not ax.get_title():
        ax.set_title(title)
    ax.set_xlabel(ax.get_xlabel() or xlabel)
    ax.set_ylabel(ax.get_ylabel() or ylabel)


def wrapped(text: str, letters: int) -> str:
    """Break a title into lines of at most about so many letters.

    Lines break at spaces, and after colons in longer words, such as names of methods.
    """
    words = [word if len(word) <= letters else word.replace(":", ":\0 ") for word in text.split()]
    lines = textwrap.wrap(" ".join(words), letters, break_long_words=False, break_on_hyphens=False)
    return "\n".join(line.replace("\0 ", "").replace("\0", "") for line in lines)


def head_axis(ax: Axes, heads: int) -> None:
    """Scale the x axis to heads 1 to `heads`, with integer ticks."""
    integer_ticks(ax.xaxis)
    ax.set_xlim(0.4, heads + 0.6)


def integer_ticks(*sides: Axis, most: int = 12) -> None:
    """Put at most about so many ticks, at integers only."""
    from matplotlib.ticker import MaxNLocator

    for side in sides:
        side.set_major_locator(MaxNLocator(integer=True, nbins=most, min_n_ticks=1))


def legend(ax: Axes, *, ncols: int = 2, below: float = -0.17) -> None:
    """Put a legend below the axes if there are several labels."""
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
    """Draw values as colours, NaN as hidden cells, and a colour bar if there is a label."""
    import matplotlib

    shown = np.ma.masked_invalid(values)
    colormap = matplotlib.colormaps[HEAT].with_extremes(bad=theme_of(ax).hidden)
    ax.grid(False)
    image = ax.imshow(shown, cmap=colormap, interpolation="nearest", aspect="auto", **options)
    if label is not None:
        color_bar(image, [ax], label)
    return image


def color_bar(image: AxesImage, beside: Sequence[Axes], label: str) -> None:
    """Draw a colour bar beside the axes that share the colours of an image."""
    figure = beside[0].get_figure()
    assert figure is not None
    bar = figure.colorbar(image, ax=beside, label=label)
    bar.outline.set_visible(False)
    _colour_ticks(bar.ax)


def band(
    ax: Axes,
    x: Any,
    middle: Any,
    half_width: Any,
    color: Any,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw a pale band around a curve, within limits."""
    low, high = middle - half_width, middle + half_width
    if limits is not None:
        low, high = (edge.clip(*limits) for edge in (low, high))
    ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def mark_training_length(ax: Axes, x: float) -> None:
    """Draw a dotted vertical line at the training length, below the curves."""
    ax.axvline(x, color=theme_of(ax).quiet, linestyle=":", zorder=0)


def styled(
    ax: Axes, things: Mapping[str, Any], kinds: Iterable[str] | None = None
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each label, its thing and its line style; without kinds, labels are the kinds."""
    looks = line_styles(ax, list(things if kinds is None else kinds))
    for (label, thing), look in zip(things.items(), looks, strict=True):
        yield label, thing, look


def line_styles(ax: Axes, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return a colour, marker and line style for each of several kinds of methods.

    "original" has the colour of text, a kind of `KINDS` its hue, and any other kind the next free
    hue. Several methods of one kind mix its hue with up to half of the colour of text; all but the
    first one have another marker and line.
    """
    theme = theme_of(ax)
    reserved = [KINDS[kind] for kind in kinds if kind in KINDS]
    free_hues = [hue for hue in HUES if hue not in {look[0] for look in reserved}]
    free_markers = [marker for marker in MARKERS if marker not in {look[1] for look in reserved}]
    result: list[dict[str, Any]] = []
    others = repeated = 0
    for index, kind in enumerate(kinds):
        strength = 1.0
        if kind == "original":
            result.append({"color": theme.text, "marker": "x", "linestyle": "-"})
            continue
        if kind in KINDS:
            hue, marker, line = KINDS[kind]
            before, after = kinds[:index].count(kind), kinds[index + 1 :].count(kind)
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
) -> tuple[float, float, float, float]:
    """Mix a hue into a colour, by default the background; strength 1 is the pure hue.

    Darker themes lighten hues.
    """
    from matplotlib.colors import to_rgb, to_rgba

    full = [theme.lift + (1 - theme.lift) * part for part in to_rgb(hue)]
    *ground, opaque = to_rgba(into or theme.background)
    behind = (1 - strength) * opaque
    alpha = strength + behind
    red, green, blue = (
        (strength * part + behind * below) / alpha for part, below in zip(full, ground, strict=True)
    )
    return red, green, blue, alpha
