"""Picture of time over length on logarithmic axes, from the results of `benchmarks.prefill`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.candidates import BASELINE, OURS
from benchmarks.prefill import CANDIDATES
from benchmarks.prefill_tables import Result, peak
from ntk_alibi import plots
from ntk_alibi.plots.style import drawing_figure, shared_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(results: Iterable[Result], path: Path) -> None:
    """Draw a panel for each dtype and head size: random inputs, no scaling, all threads."""
    panels = _panels(results)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    with drawing_figure() as new_figure:
        figure = new_figure(figsize=(5.5 * columns, 4.2 * rows + 1.2), layout="constrained")
        for number, (title, cases) in enumerate(panels.items(), 1):
            _draw_panel(figure.add_subplot(rows, columns, number), title, cases)
        shared_legend(figure, ncols=2)
    figure.savefig(path, dpi=120)


def _panels(results: Iterable[Result]) -> dict[str, list[Result]]:
    chosen = [r for r in results if r["inputs"] == "random" and r["scaling"] is None]
    threads = max(r["threads"] for r in chosen)
    panels: dict[str, list[Result]] = {}
    for result in sorted(chosen, key=lambda r: (r["head_dim"], r["dtype"] == "bfloat16")):
        if result["threads"] == threads:
            title = f"{result['dtype']}, D = {result['head_dim']}, {threads} threads"
            panels.setdefault(title, []).append(result)
    return panels


def _draw_panel(axes: Axes, title: str, cases: Sequence[Result]) -> None:
    cases = sorted(cases, key=lambda r: int(r["length"]))
    limit = [r["operations"] / peak(r) for r in cases] if all(peak(r) for r in cases) else None
    axes.set_title(title)
    plots.benchmark_curves(
        [r["length"] for r in cases],
        {_plain(c.name): [r["seconds"].get(c.name) for r in cases] for c in CANDIDATES},
        ours=[_plain(candidate.name) for candidate in OURS],
        baseline=_plain(BASELINE.name),
        limit=limit,
        ax=axes,
    )


def _plain(name: str) -> str:
    return name.replace("`", "").replace("*", "") if "**" not in name else name.replace("`", "")
