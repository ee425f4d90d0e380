"""Results of the study as Markdown tables, and as curves over length.

Intervals are Student's over the seeds, each of which has its own training and its own texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ntk_alibi.evaluation.report.markdown import describe_machine, table
from studies.means import curves, plus_minus, points, share
from studies.schemes import grid
from studies.schemes.readings import READING_MODES
from studies.schemes.summary import (
    BASELINE,
    ENDPOINT,
    ENDPOINT_AT,
    PLAIN,
    SEEDS,
    Summary,
    by_seed,
    comparable,
    cpu_hours,
    differences,
    qualifying,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Names of the schemes in tables.
LABELS = {
    "none": "none",
    "alibi": "ALiBi",
    "learned-slopes": "ALiBi, learned slopes",
    "kerple-power": "KERPLE power",
    "kerple-log": "KERPLE log",
    "sandwich": "Sandwich",
    "xpos": "XPOS",
    "rope": "RoPE",
    "bam": "BAM",
    "bam-flat": "BAM, flat",
    "bam-flat-ssmax": "BAM, flat, SSMax",
    "fox": "FoX",
}

#: Axis label, unit and limits of the quantities of the figure.
QUANTITIES: dict[str, tuple[str, float, tuple[float, float] | None]] = {
    "pairs": ("numbers found, %", 100.0, (0.0, 100.0)),
    "change": ("nats, change from 1x", 1.0, None),
}

#: Curves of each panel of the figure, by the panel's title.
PANELS = {
    "ALiBi, read in several ways": (
        "alibi/plain",
        "alibi/ntk",
        "alibi/flat",
        "alibi/flat-log-n",
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

#: Reading modes that their papers count as part of the method; the method tables include them.
PARTS_OF_METHODS = ("rope/window", "xpos/blocks")

#: Sections of the document.
SECTIONS = (
    "status",
    "machine",
    "endpoint",
    "learning",
    "grid",
    "pairs",
    "beyond",
    "prose",
    "readings",
    "training",
)


def tables(summary: Summary) -> dict[str, str]:
    """Format each section of the document, by the section's name.

    Args:
        summary: from `summarise`.
    """
    names = [f"{scheme}/{mode.name}" for scheme in LABELS for mode in READING_MODES]
    trained = [f"{scheme}/{PLAIN}" for scheme in summary["training"]]
    names = [name for name in names if name in trained or comparable(summary, name)]
    methods = [name for name in names if _is_method(name)]
    others = [name for name in names if not _is_method(name)]
    multiples = summary["plan"]["multiples"]
    longer = multiples[1:]
    return {
        "status": _status(summary),
        "machine": describe_machine(),
        "endpoint": _endpoint(summary, [name for name in names if name != BASELINE]),
        "learning": _learning(summary),
        "grid": _grid(summary),
        "pairs": _table(
            summary, methods, [("pairs", m, share) for m in multiples], seeds_at=multiples[-1]
        ),
        "beyond": _table(summary, methods, [("beyond", m, share) for m in longer]),
        "prose": _table(
            summary, methods, [("nats", 1, _nats), *(("change", m, _change) for m in longer)]
        ),
        "readings": _table(
            summary,
            others,
            [*(("pairs", m, share) for m in longer), *(("change", m, _change) for m in longer)],
        ),
        "training": _training(summary),
    }


def _is_method(name: str) -> bool:
    return name.endswith(f"/{PLAIN}") or name in PARTS_OF_METHODS


def label(summary: Summary, name: str, multiples: Sequence[int] = ()) -> str:
    """Return the label of a "scheme/reading" in tables and figures.

    It has the methods for some multiples of the training length, by default all longer ones.
    """
    scheme, _, reading = name.partition("/")
    if reading == PLAIN:
        return LABELS[scheme]
    mode = next(mode for mode in READING_MODES if mode.name == reading)
    longer = multiples or summary["plan"]["multiples"][1:]
    return f"{LABELS[scheme]} + {mode.label(longer)}"


def _status(summary: Summary) -> str:
    done = sum(len(set(SEEDS) & set(taken["seeds"])) for taken in summary["training"].values())
    planned = len(LABELS) * len(SEEDS)
    if done >= planned:
        return f"All tables and the figure are from this protocol: {done} trainings."
    return (
        f"{done} of {planned} trainings of this protocol are finished; the tables and the figure "
        "show these."
    )


def _runs(summary: Summary, name: str) -> str:
    """Tell how many runs of a scheme are compared beyond the training length."""
    scheme = name.partition("/")[0]
    count, every = len(qualifying(summary, scheme)), len(summary["training"][scheme]["seeds"])
    return f"{count} of {every}" if count else f"0 of {every}: none at 95 %"


def _endpoint(summary: Summary, names: Sequence[str]) -> str:
    rows = []
    for name in names:
        gains = differences(summary, name)
        own, base = (
            [by_seed(summary, x, ENDPOINT, ENDPOINT_AT)[seed] for seed in gains]
            for x in (name, BASELINE)
        )
        each = " / ".join(f"{100 * gain:+.0f}" for gain in gains.values())
        cells = [share(own), share(base), points(list(gains.values())), each]
        named = label(summary, name, [ENDPOINT_AT])
        rows.append([named, _runs(summary, name), str(len(gains)), *cells])
    at = f"{ENDPOINT_AT}x"
    header = ["", "runs", "pairs of runs", f"beyond, %, {at}", f"ALiBi, %, {at}"]
    return table([*header, "difference, points", "each seed"], rows)


def _learning(summary: Summary) -> str:
    rows = []
    for scheme, taken in summary["training"].items():
        setting = summary["setting"][scheme]
        steps = [x for x in taken["learned_at"] if x is not None]
        each = " / ".join("-" if x is None else str(x) for x in taken["learned_at"])
        at_first = list(by_seed(summary, f"{scheme}/{PLAIN}", "pairs", 1, every=True).values())
        rows.append(
            [
                LABELS[scheme],
                f"{setting['muon_rate']:g}",
                f"{setting['first_weights_std']:g}",
                f"{len(steps)} of {len(taken['seeds'])}",
                plus_minus(steps, 0, ""),
                each,
                share(at_first),
                _runs(summary, scheme),
            ]
        )
    chosen = ["rate of the matrices", "first weights"]
    learned = ["learned", "steps to learn", "each seed"]
    return table(["", *chosen, *learned, "pairs, %, 1x", "at least 95 %"], rows)


def _grid(summary: Summary) -> str:
    rows = []
    for scheme, runs in summary["grid"].items():
        cells = []
        for setting in grid.SETTINGS:
            own = [run for run in runs if vars(setting).items() <= run.items()]
            steps = [run["learned_at"] for run in own if run["learned_at"] is not None]
            loss = f"loss {np.mean([run['loss'] for run in own]):.2f}"
            told = f"{np.mean(steps):.0f} steps" if steps else loss
            cell = f"{len(steps)} of {len(own)}, {told}"
            cells.append(f"**{cell}**" if vars(setting) == summary["setting"][scheme] else cell)
        rows.append([LABELS[scheme], *cells])
    settings = [f"rate {x.muon_rate:g}, weights {x.first_weights_std:g}" for x in grid.SETTINGS]
    return table(["", *settings], rows)


def _table(
    summary: Summary,
    names: Sequence[str],
    columns: Sequence[tuple[str, int, Callable[[Sequence[float]], str]]],
    seeds_at: int | None = None,
) -> str:
    """Format a row for each name; seeds_at adds a column of each seed's pairs at a multiple.

    Columns at the training length take all runs, those beyond it only runs that qualify.
    """
    words = {"pairs": "pairs, %", "beyond": "beyond, %", "nats": "nats", "change": "nats"}
    header = [f"{words[quantity]}, {multiple}x" for quantity, multiple, _ in columns]
    rows = []
    for name in names:
        cells = [
            written(list(by_seed(summary, name, quantity, m, every=m == 1).values()))
            for quantity, m, written in columns
        ]
        if seeds_at is not None:
            each = by_seed(summary, name, "pairs", seeds_at).values()
            cells.append(" / ".join(f"{100 * share:.0f}" for share in each))
        rows.append([label(summary, name), _runs(summary, name), *cells])
    header += [] if seeds_at is None else [f"each seed, {seeds_at}x"]
    return table(["", "runs", *header], rows)


def _nats(values: Sequence[float]) -> str:
    return plus_minus(values, 2, "")


def _change(values: Sequence[float]) -> str:
    return plus_minus(values, 3)


def _training(summary: Summary) -> str:
    seconds = ("cpu_seconds", "wall_seconds", "reading_cpu_seconds")
    rows = [
        [
            LABELS[scheme],
            str(len(taken["seeds"])),
            *(f"{np.mean(taken[x]):.0f}" for x in seconds),
        ]
        for scheme, taken in summary["training"].items()
    ]
    header = ["", "runs", "CPU seconds a training", "wall seconds", "CPU seconds of its readings"]
    hours = cpu_hours(summary)
    parts = ", ".join(f"{name} {spent:.2f}" for name, spent in hours.items())
    return f"{table(header, rows)}\n\nCPU hours: {parts}; {sum(hours.values()):.2f} together."


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
    train_length, multiples = summary["recipe"]["train_length"], summary["plan"]["multiples"]
    for row, (quantity, (words, unit, limits)) in enumerate(QUANTITIES.items()):
        for panel, (title, names) in zip(axes[row], panels.items(), strict=True):
            cells = {
                label(summary, name): [_drawn(summary, name, quantity, x) for x in multiples]
                for name in names
                if comparable(summary, name)
            }
            curves(cells, multiples, train_length, words, ax=panel, unit=unit, limits=limits)
            panel.set_title(title)
    return made


def _drawn(summary: Summary, name: str, quantity: str, multiple: int) -> list[float]:
    """Return the results of a "scheme/reading", or of the plain reading where they are the same.

    Within the training length most reading modes change nothing, and are not measured.
    """
    plain = f"{name.partition('/')[0]}/{PLAIN}"
    own, as_trained = (by_seed(summary, x, quantity, multiple) for x in (name, plain))
    return list((own or as_trained).values())
