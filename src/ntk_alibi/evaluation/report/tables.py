"""Rich tables of studies, comparisons and searches, and their forms in HTML and Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ntk_alibi.evaluation.report.markdown import FORMATS
from ntk_alibi.inspection.notebook import table_html

Entry = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A number in a table with its interval: two ends, or a half-width.

    Attributes:
        value: the number.
        low, high: the ends of its interval, or "".
        half_width: half the width of its interval, or "".
    """

    value: str
    low: str = ""
    high: str = ""
    half_width: str = ""

    def __rich__(self) -> str:
        """Return the cell as rich's markup."""
        return f"{self.value} [dim]{self._interval()}[/]" if self._interval() else self.value

    def __str__(self) -> str:
        return f"{self.value} {self._interval()}".rstrip()

    def _interval(self) -> str:
        ends = f"{self.low}-{self.high}" if self.low else ""
        return f"±{self.half_width}" if self.half_width else ends

    def parts(self, name: str) -> dict[str, str]:
        """Return the numbers by the names of the columns that they have in CSV."""
        named = {"low": self.low, "high": self.high, "half-width": self.half_width}
        return {name: self.value, **{f"{name}, {k}": v for k, v in named.items() if v}}


def study_tables(summary: dict[str, Any]) -> list[Table]:
    """Build tables of a study: retrieval by length and by distance, perplexity by position."""
    unit = f"{summary['train_length']} tokens"
    tables = []
    for task in dict.fromkeys(entry["task"] for entry in summary["retrieval"]):
        entries = [entry for entry in summary["retrieval"] if entry["task"] == task]
        cases = _cases(entries)
        title = f"{task}: accuracy in %, 95 % interval, by length (1x = {unit}; {cases})"
        by_length = _named(entries, _multiple)
        tables.append(_table(summary, entries, title, by_length, _accuracy_interval))
        name, first = next(iter(summary["methods"].items()))
        others = [e for e in entries if e["method"] != name and e.get("gain") is not None]
        if others:
            title = (
                f"{task}: points gained over {first}, paired by record, 95 % interval "
                "(none where all records agree)"
            )
            tables.append(_table(summary, others, title, by_length, _gain))
        entries = [e for e in summary["by_distance"] if e["task"] == task and e["cases"]]
        title = f"{task}: accuracy in % by distance of the answer / {unit}"
        tables.append(_table(summary, entries, title, _named(entries, _range), _accuracy))
    if summary["perplexity"]:
        first = next(iter(summary["methods"].values()))
        widest = max(entry["half_width"] for entry in summary["perplexity"])
        title = f"prose: nats per token by position / {unit}; below {first}, the difference from it"
        if not math.isnan(widest):
            title += f", whose 95 % half-widths are up to {widest:.3f}"
        by_range = _named(summary["perplexity"], _range)
        tables.append(_table(summary, summary["perplexity"], title, by_range, _nats))
    return tables


def _cases(entries: list[Entry]) -> str:
    """Name the number of questions of each length."""
    counts = {entry["cases"] for entry in entries}
    fewest, most = min(counts), max(counts)
    return f"{most} cases" if fewest == most else f"{fewest} to {most} cases"


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
            cell: Any = _value_interval(row)
            other = "" if row["published"] is None else f"{row['published']:g}"
            table.add_row(row["label"], str(row["cases"]), cell, *([other] if published else []))
        tables.append(table)
    return tables


def tuning_table(tuning: dict[str, Any]) -> Table:
    """Build the table of a search's candidates; the chosen method is bold."""
    table = _empty(f"{tuning['model']} at {tuning['length']} tokens, records of the search")
    for name in ("retrieval in %, 95 %", "nats - original's, 95 %", "best in % of resamplings"):
        table.add_column(name, justify="right")
    for entry in tuning["candidates"]:
        chosen = entry["method"] == tuning["chosen"]
        table.add_row(
            f"[bold]{entry['label']}[/]" if chosen else entry["label"],
            _accuracy_interval(entry),
            _with_half_width(f"{entry['difference']:+.3f}", entry["half_width"], ".3f"),
            f"{100 * entry['best_share']:.0f}",
        )
    return table


def html(table: Table) -> str:
    """Format a table as HTML for notebooks."""
    return table_html(str(table.title), *_plain(table))


def markdown(table: Table) -> str:
    """Format a table as Markdown, below its title."""
    return formatted(table, "markdown").rstrip("\n")


def formatted(table: Table, name: str) -> str:
    """Format a table as "csv", "markdown" or "latex"."""
    plain = _numbers(table) if name == "csv" else _plain(table)
    return FORMATS[name](str(table.title), *plain)


def _plain(table: Table) -> tuple[list[str], list[Sequence[str]]]:
    """Return the header and the rows of a table without marks."""
    columns = [[Text.from_markup(str(cell)).plain for cell in c.cells] for c in table.columns]
    return [str(column.header) for column in table.columns], list(zip(*columns, strict=True))


def _numbers(table: Table) -> tuple[list[str], list[Sequence[str]]]:
    """Return the header and the rows of a table with a column for each number of its cells."""
    header, rows = _plain(table)
    columns: dict[str, list[str]] = {}
    for i, (name, column) in enumerate(zip(header, table.columns, strict=True)):
        cells: list[Any] = list(column.cells)
        parts = [c.parts(name) if isinstance(c, Cell) else {} for c in cells]
        names = dict.fromkeys([name, *(key for part in parts for key in part)])
        for key in names:
            plain = ["" if key != name else row[i] for row in rows]
            columns[key] = [p.get(key, text) for p, text in zip(parts, plain, strict=True)]
    return list(columns), list(zip(*columns.values(), strict=True))


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
    cell: Callable[[Entry], str | Cell],
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


def _named(
    entries: list[Entry], name: Callable[[Entry, Callable[[float], str]], str]
) -> Callable[[Entry], str]:
    """Return a function that names the column of an entry, with two digits if they tell apart."""
    exact = {name(entry, _exact) for entry in entries}
    short = {name(entry, _two_digits) for entry in entries}
    form = _two_digits if len(short) == len(exact) else _exact
    return lambda entry: name(entry, form)


def _exact(number: float) -> str:
    return f"{number:g}"


def _two_digits(number: float) -> str:
    rounded = round(number, 2)
    return f"{rounded:g}" if rounded else f"{number:.2g}"


def _multiple(entry: Entry, form: Callable[[float], str]) -> str:
    return f"{form(entry['multiple'])}x"


def _range(entry: Entry, form: Callable[[float], str]) -> str:
    return f"{form(entry['begin'])}-{form(entry['end'])}"


def _accuracy(entry: Entry) -> str:
    return "" if entry["accuracy"] is None else f"{100 * entry['accuracy']:.0f}"


def _accuracy_interval(entry: Entry) -> str | Cell:
    if entry["accuracy"] is None:
        return ""
    return Cell(_accuracy(entry), *(f"{100 * entry[end]:.0f}" for end in ("low", "high")))


def _gain(entry: Entry) -> Cell:
    return _with_half_width(f"{100 * entry['gain']:+.0f}", 100 * entry["gain_half_width"], ".0f")


def _with_half_width(value: str, half_width: float, form: str) -> Cell:
    """Return a number with its half-width, if it has one: NaN is that of a single record."""
    return Cell(value, half_width="" if math.isnan(half_width) else f"{half_width:{form}}")


def _nats(entry: Entry) -> str:
    if entry["difference"] == 0.0:
        return f"{entry['nats']:.3f}"
    return f"{entry['difference']:+.3f}".replace("0.", ".", 1)


def _value_interval(row: Entry) -> Cell:
    unit, form = (1, ".3f") if row["metric"] == "nats" else (100, ".1f")
    value, low, high = (f"{unit * row[key]:{form}}" for key in ("value", "low", "high"))
    return Cell(value) if math.isnan(row["low"]) else Cell(value, low, high)
