"""Results of the study as curves over length.

Intervals are Student's over the seeds, each of which has its own training and its own texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ntk_alibi import _checks, plots
from ntk_alibi.evaluation.comparing.intervals import half_width
from studies.schemes.summary import PLAIN, Summary, by_seed, comparable
from studies.schemes.tables import LABELS, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Axis label, unit and limits of the quantities of curves.
QUANTITIES: dict[str, tuple[str, float, tuple[float, float] | None]] = {
    "pairs": ("numbers found, %", 100.0, (0.0, 100.0)),
    "beyond": ("far numbers found, %", 100.0, (0.0, 100.0)),
    "change": ("nats, change from 1x", 1.0, None),
}

#: Curves of each panel of the figure, by the panel's title.
PANELS = {
    "ALiBi, read in several ways": (
        "alibi/plain",
        "alibi/ntk",
        "alibi/flat",
        "alibi/flat-log-n",
        "alibi/knee",
        "alibi/window",
    ),
    "learned biases": (
        "learned-slopes/plain",
        "kerple-power/plain",
        "kerple-log/plain",
        "bam/plain",
        "bam-flat/plain",
        "bam-flat-ssmax/plain",
        "fox/plain",
    ),
    "none, Sandwich and rotations": (
        "none/plain",
        "sandwich/plain",
        "rope/plain",
        "rope/window",
        "rope/ntk",
        "xpos/plain",
        "xpos/blocks",
    ),
}


def figure(summary: Summary) -> Figure:
    """Plot accuracy and change of nats over length, with 95 % bands, for the runs that qualify.

    Panels without such a run are left out.

    Args:
        summary: from `summarise`.
    """
    from matplotlib.figure import Figure

    panels = {
        title: names
        for title, names in PANELS.items()
        if any(comparable(summary, name) for name in names)
    } or PANELS
    made = Figure(figsize=(4.7 * len(panels), 8), layout="constrained")
    axes = made.subplots(2, len(panels), sharey="row", squeeze=False)
    for row, quantity in enumerate(("pairs", "change")):
        for column, (title, names) in enumerate(panels.items()):
            curves(summary, names, quantity, ax=axes[row, column]).set_title(title)
    return made


def curves(summary: Summary, names: Iterable[str], quantity: str, ax: Axes | None = None) -> Axes:
    """Plot a quantity over length, with 95 % bands, for the runs that qualify.

    Args:
        summary: from `summarise`.
        names: pairs "scheme/reading"; those without a run that qualifies are left out.
        quantity: a key of `QUANTITIES`.
        ax: axes to draw into; a new figure's by default.

    Returns:
        The axes that hold the picture.

    Raises:
        ValueError: quantity is unknown, or a name has no scheme of the study.
    """
    _checks.choice("quantity", quantity, tuple(QUANTITIES))
    names = list(names)
    for name in names:
        _checks.choice("the scheme of a name", name.partition("/")[0], tuple(LABELS))
    train_length, multiples = summary["recipe"]["train_length"], summary["plan"]["multiples"]
    words, unit, limits = QUANTITIES[quantity]
    known = [name for name in names if comparable(summary, name)]
    means, widths = _curves(summary, known, quantity, multiples, unit)
    return plots.extrapolation_curves(
        [multiple * train_length for multiple in multiples],
        means,
        half_widths=widths,
        train_length=train_length,
        quantity=words,
        limits=limits,
        ax=ax,
    )


def _curves(
    summary: Summary,
    names: Iterable[str],
    quantity: str,
    multiples: Sequence[int],
    unit: float,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return means and half-widths of each method at all multiples.

    At multiples where a reading mode changes nothing, the figures of the plain mode are used.
    """
    means: dict[str, list[float]] = {}
    widths: dict[str, list[float]] = {}
    for name in names:
        plain = f"{name.partition('/')[0]}/{PLAIN}"
        cells = [
            list(
                (
                    by_seed(summary, name, quantity, x) or by_seed(summary, plain, quantity, x)
                ).values()
            )
            for x in multiples
        ]
        means[label(name)] = [unit * float(np.mean(x)) if x else math.nan for x in cells]
        widths[label(name)] = [
            unit * float(np.nan_to_num(half_width(x))) if x else math.nan for x in cells
        ]
    return means, widths
