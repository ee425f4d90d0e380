"""Results as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ntk_alibi import _rich

Entry = dict[str, Any]


def study_tables(summary: dict[str, Any]) -> list[Table]:
    """A study's summary as tables: retrieval by length, by distance, perplexity by position."""
    unit = f"{summary['train_length']} tokens"
    tables = []
    for task in dict.fromkeys(entry["task"] for entry in summary["retrieval"]):
        entries = [entry for entry in summary["retrieval"] if entry["task"] == task]
        cases = f"{entries[0]['cases']} cases"
        title = f"{task}: accuracy in %, 95 % interval, by length (1x = {unit}; {cases})"
        tables.append(_table(summary, entries, title, _multiple, _accuracy_interval))
        entries = [e for e in summary["by_distance"] if e["task"] == task and e["cases"]]
        title = f"{task}: accuracy in % by distance of the answer / {unit}"
        tables.append(_table(summary, entries, title, _range, _accuracy))
    if summary["perplexity"]:
        first = next(iter(summary["methods"].values()))
        widest = max(entry["half_width"] for entry in summary["perplexity"])
        title = (
            f"prose: nats a token by position / {unit}; below {first}, the difference from it, "
            f"whose 95 % half-widths are up to {widest:.3f}"
        )
        tables.append(_table(summary, summary["perplexity"], title, _range, _nats))
    return tables


def longeval_table(title: str, rows: Sequence[Entry]) -> Table:
    """LongEval's accuracies: rows of label, cases, accuracy, low, high."""
    table = _empty(title)
    table.add_column("cases", justify="right")
    table.add_column("accuracy in % and its 95 % interval", justify="right")
    for row in rows:
        table.add_row(row["label"], str(row["cases"]), _accuracy_interval(row))
    return table


def html(table: Table) -> str:
    """A table for notebooks."""
    columns = [[Text.from_markup(str(cell)).plain for cell in c.cells] for c in table.columns]
    header = [str(column.header) for column in table.columns]
    return _rich.table_html(str(table.title), header, zip(*columns, strict=True))


def _empty(title: str) -> Table:
    """Narrow enough for 80 columns of a terminal."""
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
    """A row for each method, a column for each value of column(entry)."""
    table = _empty(title)
    columns = list(dict.fromkeys(map(column, entries)))
    for name in columns:
        table.add_column(name, justify="right")
    for method, label in summary["methods"].items():
        cells = {column(entry): cell(entry) for entry in entries if entry["method"] == method}
        table.add_row(label, *(cells[name] for name in columns))
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


def _nats(entry: Entry) -> str:
    if entry["difference"] == 0.0:
        return f"{entry['nats']:.3f}"
    return f"{entry['difference']:+.3f}".replace("0.", ".", 1)
