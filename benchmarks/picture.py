"""Time over length, both logarithmic, from what `benchmarks.prefill` measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.candidates import BASELINE, OURS
from benchmarks.prefill import CANDIDATES
from benchmarks.prefill_tables import Result, peak

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Ours in blue, darker where more is skipped; peers in other hues, the one without a bias in black.
STYLES: dict[str, dict[str, Any]] = {
    BASELINE.name: {"color": "black", "linestyle": "--", "marker": "."},
    **{
        candidate.name: {"color": color, "linewidth": 2.2, "marker": "o", "zorder": 3}
        for candidate, color in zip(OURS, ("#6baed6", "#2171b5", "#08306b"), strict=True)
    },
}
PEER_COLORS = "#e6550d #fdae6b #31a354 #a1d99b #756bb1 #c51b8a #8c6d31 #7f7f7f".split()


def draw(results: Iterable[Result], path: Path) -> None:
    """A panel for each dtype and head size, unstretched random inputs and most threads only."""
    from matplotlib.figure import Figure

    panels = _panels(results)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.5 * columns, 4.2 * rows + 1.2), layout="constrained")
    for number, (title, cases) in enumerate(panels.items(), 1):
        _draw_panel(figure.add_subplot(rows, columns, number), title, cases)
    labels = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        labels.values(), labels.keys(), loc="outside lower center", ncols=2, frameon=False
    )
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
    colors = iter(PEER_COLORS)
    for candidate in CANDIDATES:
        name = candidate.name
        style = STYLES.get(name) or {"color": next(colors), "marker": ".", "linewidth": 1}
        measured = [(r["length"], 1e3 * r["seconds"][name]) for r in cases if name in r["seconds"]]
        if measured:
            axes.plot(*zip(*measured, strict=True), label=_plain(name), **style)
    if all(peak(r) for r in cases):
        limit = [1e3 * r["operations"] / peak(r) for r in cases]
        lengths = [r["length"] for r in cases]
        axes.plot(
            lengths, limit, color="0.6", linestyle=":", label="all pairs at the machine's peak"
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title)
    axes.set_xlabel("tokens")
    axes.set_ylabel("ms")
    axes.set_xticks([r["length"] for r in cases], [str(r["length"]) for r in cases], rotation=45)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _plain(name: str) -> str:
    return name.replace("`", "").replace("*", "") if "**" not in name else name.replace("`", "")
