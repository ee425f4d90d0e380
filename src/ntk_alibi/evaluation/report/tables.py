"""Rich tables of studies, comparisons and searches, and their forms in HTML and Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ntk_alibi import _notebook
from ntk_alibi.evaluation.report.formats import FORMATS

Entry = dict[str, Any]


def study_tables(summary: dict[str, Any]) -> list[Table]:
    """Build tables of a study: retrieval by length and by distance, perplexity by position."""
    unit = f"{summary['train_length']} tokens"
    tables = []
    for task in dict.fromkeys(entry["task"] for entry in summary["retrieval"]):
        entries = [entry for entry in summary["retrieval"] if entry["task"] == task]
        cases = f"{entries[0]['cases']} cases"
        title = f"{task}: accuracy in %, 95 % interval, by length (1x = {unit}; {cases})"
        tables.append(_table(summary, entries, title, _multiple, _accuracy_interval))
        name, first = next(iter(summary["methods"].items()))
        others = [e for e in entries if e["method"] != name and e.get("gain") is not None]
        if others:
            title = f"{task}: points gained over {first}, paired by record, 95 % interval"
            tables.append(_table(summary, others, title, _multiple, _gain))
        entries = [e for e in summary["by_distance"] if e["task"] == task and e["cases"]]
        title = f"{task}: accuracy in % by distance of the answer / {unit}"
        tables.append(_table(summary, entries, title, _range, _accuracy))
    if summary["perplexity"]:
        first = next(iter(summary["methods"].values()))
        widest = max(entry["half_width"] for entry in summary["perplexity"])
        title = (
            f"prose: nats per token by position / {unit}; below {first}, the difference from it, "
            f"whose 95 % half-widths are up to {widest:.3f}"
        )
        tables.append(_table(summary, summary["perplexity"], title, _range, _nats))
    return tables


def comparison_tables(comparison: dict[str, Any]) -> list[Table]:
    """Build a table for each task of a comparison, with a column of published figures."""
    tables = []
    rows = comparison["rows"]
    for task in dict.fromkeys(row["task"] for row in rows):
        task_rows = [row for row in rows if row["task"] == task]
        unit = "" if task_rows[0]["metric"] == "nats" else " in %"
        table = _empty(f"{task}, {comparison['model']}")
        table.add_column("cases", justify="right")
        table.add_column(f"{task_rows[0]['metric']}{unit} and its 95 % interval", justify="right")
        published = any(row["published"] is not None for row in task_rows)
        if published:
            table.add_column("published in %", justify="right")
        for row in task_rows:
            cell = _value_interval(row)
            other = "" if row["published"] is None else f"{row['published']:g}"
            table.add_row(row["label"], str(row["cases"]), cell, *([other] if published else []))
        tables.append(table)
    return tables


def tuning_table(tuning: dict[str, Any]) -> Table:
    """Build the table of a search's candidates; the chosen method is bold."""
    table = _empty(f"{tuning['model']} at {tuning['length']} tokens, records of the search")
    for name in ("retrieval in %, 95 %", "nats - original's, 95 %", "best in resamplings"):
        table.add_column(name, justify="right")
    for entry in tuning["candidates"]:
        chosen = entry["method"] == tuning["chosen"]
        table.add_row(
            f"[bold]{entry['label']}[/]" if chosen else entry["label"],
            _accuracy_interval(entry),
            f"{entry['difference']:+.3f} [dim]±{entry['half_width']:.3f}[/]",
            f"{100 * entry['best_share']:.0f} %",
        )
    return table


def html(table: Table) -> str:
    """Format a table as HTML for notebooks."""
    return _notebook.table_html(str(table.title), *_plain(table))


def markdown(table: Table) -> str:
    """Format a table as Markdown, below its title."""
    return formatted(table, "markdown").rstrip("\n")


def formatted(table: Table, name: str) -> str:
    """Format a table as "csv", "markdown" or "latex"."""
    return FORMATS[name](str(table.title), *_plain(table))


def _plain(table: Table) -> tuple[list[str], list[Sequence[str]]]:
    """Return the header and the rows of a table without marks."""
    columns = [[Text.from_markup(str(cell)).plain for cell in c.cells] for c in table.columns]
    return [str(column.header) for column in table.columns], list(zip(*columns, strict=True))


def _empty(title: str) -> Table:
    """Return a table with a column of methods, narrow enough for a terminal of 80 columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method")
    return table


def _table(
    summary: dict[str, Any],
    entries: list[Entry],
    title: str,
    column: Callable[[Entry], str],
    cell: Callable[[Entry], str],
) -> Table:
    """Build a table with a row for each method and a column for each value of column(entry)."""
    table = _empty(title)
    columns = list(dict.fromkeys(map(column, entries)))
    for name in columns:
        table.add_column(name, justify="right")
    for method, label in summary["methods"].items():
        cells = {column(entry): cell(entry) for entry in entries if entry["method"] == method}
        table.add_row(label, *(cells.get(name, "") for name in columns))
    return table


def _multiple(entry: Entry) -> str:
    return f"{entry['multiple']:g}x"


def _range(entry: Entry) -> str:
    return f"{entry['begin']:g}-{entry['end']:g}"


def _accuracy(entry: Entry) -> str:
    return "" if entry["accuracy"] is None else f"{100 * entry['accuracy']:.0f}"


def _accuracy_interval(entry: Entry) -> str:
    if entry["accuracy"] is None:
        return ""
    return f"{_accuracy(entry)} [dim]{100 * entry['low']:.0f}-{100 * entry['high']:.0f}[/]"


def _gain(entry: Entry) -> str:
    width = entry["gain_half_width"]
    interval = "" if math.isnan(width) else f" [dim]±{100 * width:.0f}[/]"
    return f"{100 * entry['gain']:+.0f}{interval}"


def _nats(entry: Entry) -> str:
    if entry["difference"] == 0.0:
        return f"{entry['nats']:.3f}"
    return f"{entry['difference']:+.3f}".replace("0.", ".", 1)


def _value_interval(row: Entry) -> str:
    if row["metric"] == "nats":
        return f"{row['value']:.3f} [dim]{row['low']:.3f}-{row['high']:.3f}[/]"
    value, low, high = (100 * row[key] for key in ("value", "low", "high"))
    return f"{value:.1f} [dim]{low:.1f}-{high:.1f}[/]"
