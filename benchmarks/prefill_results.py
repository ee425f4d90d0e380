"""Results of `benchmarks.prefill`: tables of the kinds of problems, and a picture."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.candidates import BASELINE, OURS
from benchmarks.prefill import CANDIDATES
from ntk_alibi import plots
from ntk_alibi.evaluation.report.markdown import table
from ntk_alibi.plots.style import drawing_figure, shared_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = dict[str, Any]


def markdown(results: Sequence[Result]) -> str:
    """Return a table for each kind of problem, with a column for each length."""
    groups = itertools.groupby(results, key=_title)
    return "\n\n".join(f"{title}\n\n{_table(list(group))}" for title, group in groups)


def peak(result: Result) -> float:
    """Return the machine's measured peak, operations per second of the dtype's instruction."""
    peaks: dict[str, float] = result["peaks"]
    return (peaks["bf16_dot"] if result["dtype"] == "bfloat16" else 0.0) or peaks["fma"]


def _title(result: Result) -> str:
    threads = "1 thread" if result["threads"] == 1 else f"{result['threads']} threads"
    scaling = f", {result['scaling']}" if result["scaling"] else ""
    shape = f"B = {result['batch']}, H = {result['heads']}, D = {result['head_dim']}"
    return f"**{result['dtype']}, {shape}, {threads}{scaling}**, inputs: {result['inputs']}"


def _table(results: Sequence[Result]) -> str:
    header = ["ms (speed / no bias)", *(f"L = {r['length']}" for r in results), "error"]
    names = [c.name for c in CANDIDATES if any(c.name in r["seconds"] for r in results)]
    rows = [
        [name, *(_cell(r, name) for r in results), _largest_error(results, name)] for name in names
    ]
    return table(header, rows + [[*row, ""] for row in _shares(results)])


def _cell(result: Result, name: str) -> str:
    seconds = result["seconds"]
    if name not in seconds:
        return ""
    return f"{milliseconds(seconds[name])} ({seconds[BASELINE.name] / seconds[name]:.2f})"


def milliseconds(seconds: float) -> str:
    """Format milliseconds with three significant digits, or with all integer digits."""
    number = 1e3 * seconds
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f}"


def _largest_error(results: Iterable[Result], name: str) -> str:
    errors = [r["errors"][name] for r in results if name in r["errors"]]
    return f"{max(errors):.1e}" if errors else ""


def _shares(results: Sequence[Result]) -> Iterable[list[str]]:
    """Yield the rows below the candidates: shares of the peak, shares of blocks read, rounds."""
    instruction = "bfloat16 dot products" if _by_dots(results[0]) else "multiply-adds"
    if peak(results[0]):
        yield [f"peak of {instruction}, GFLOP/s", *(f"{peak(r) / 1e9:.0f}" for r in results)]
        highest = max(map(peak, results))
        for name in (OURS[0].name, BASELINE.name):
            yield [f"of the highest: {name}", *(_share(r, name, highest) for r in results)]
    for candidate in OURS[1:]:
        name = candidate.name
        shares = (f"{100 * r['blocks_read'][name]:.0f} %" for r in results)
        yield [f"blocks of keys read: {name}", *shares]
    yield ["rounds", *(str(r["rounds"]) for r in results)]


def _by_dots(result: Result) -> bool:
    return bool(peak(result) != result["peaks"]["fma"])


def _share(result: Result, name: str, highest: float) -> str:
    return f"{100 * result['operations'] / result['seconds'][name] / highest:.0f} %"


def draw(results: Iterable[Result], path: Path) -> None:
    """Draw a panel for each dtype and head size: random inputs, no scaling, all threads."""
    panels = _panels(results)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    with plots.style("light"), drawing_figure() as new_figure:
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
