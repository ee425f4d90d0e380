"""Tables of studies, comparisons and searches: for terminals, notebooks and documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ntk_alibi.evaluation.report.cells import Cell, with_ends, with_half_width
from ntk_alibi.evaluation.report.markdown import FORMATS
from ntk_alibi.inspection.notebook import table_html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType

Entry = dict[str, Any]

#: Spaces between the columns of a printed table: two, or one where a row fits then.
GAPS = (2, 1)


@dataclass(frozen=True)
class ResultTable:
    """A table with a row for each method, which rich prints in the width of the terminal.

    Columns for which a row has no room stand below, beside the methods again, so that no row is
    wrapped.

    Attributes:
        title: the title.
        header: the names of the columns; the first is that of the methods.
        rows: for each method, its name and its cells.
        chosen: the name of a method whose row is bold, or "".
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    chosen: str = ""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield what rich prints: the title, and the columns in as many parts as needed."""
        from rich.text import Text

        yield Text(f"\n{self.title}")
        parts, gap = self._parts(options.max_width)
        for place, columns in enumerate(parts):
            if place:
                yield ""
            yield self._printed(columns, gap)

    def _repr_html_(self) -> str:
        return html(self)

    def _parts(self, width: int) -> tuple[list[list[int]], int]:
        """Return the columns of as few parts as fit into a width, and the gap between them.

        A part whose single column has no room is too wide.
        """
        widths = [
            max(map(len, map(str, cells))) for cells in zip(self.header, *self.rows, strict=True)
        ]
        columns = range(1, len(widths))
        for count, gap in product(range(1, max(2, len(widths))), GAPS):
            parts = [part.tolist() for part in np.array_split(columns, count)]
            if all(widths[0] + sum(gap + widths[x] for x in part) <= width for part in parts):
                break
        return parts, gap

    def _printed(self, columns: Sequence[int], gap: int) -> RenderableType:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0)
        )
        table.add_column(Text(self.header[0]))
        for column in columns:
            table.add_column(Text(self.header[column]), justify="right")
        for name, *cells in self.rows:
            texts = [_text(cells[column - 1]) for column in columns]
            table.add_row(Text(str(name)), *texts, style="bold" if name == self.chosen else "")
        return table


def _text(cell: str | Cell) -> Any:
    """Return a cell for rich, with a dim interval."""
    from rich.text import Text

    if not isinstance(cell, Cell) or not cell.interval:
        return Text(str(cell))
    return Text.assemble(cell.value, " ", (cell.interval, "dim"))


def study_tables(summary: dict[str, Any]) -> list[ResultTable]:
    """Build tables of a study: retrieval by length and by distance, perplexity by position."""
    unit = f"{summary['train_length']} tokens"
    first = next(iter(summary["methods"]))
    tables = []
    for task in dict.fromkeys(entry["task"] for entry in summary["retrieval"]):
        entries = [entry for entry in summary["retrieval"] if entry["task"] == task]
        title = f"{task}: accuracy in %, 95 % interval (1x = {unit}; {_cases(entries)})"
        by_length = _named(entries, _multiple)
        tables.append(_table(summary, entries, title, by_length, _accuracy_interval))
        others = [e for e in entries if e["method"] != first and e.get("gain") is not None]
        if others:
            title = (
                f"{task}: points over {first}, paired, 95 % interval (none if all records agree)"
            )
            tables.append(_table(summary, others, title, by_length, _gain))
        entries = [e for e in summary["by_distance"] if e["task"] == task and e["cases"]]
        if entries:
            title = f"{task}: accuracy in % by distance of the answer / {unit}"
            tables.append(_table(summary, entries, title, _named(entries, _range), _accuracy))
    if summary["perplexity"]:
        widest = max(entry["half_width"] for entry in summary["perplexity"])
        title = f"prose: nats by position / {unit}; rest minus {first}"
        if not math.isnan(widest):
            title += f" (95 %: up to ± {widest:.3f})"
        by_range = _named(summary["perplexity"], _range)
        tables.append(_table(summary, summary["perplexity"], title, by_range, _nats(first)))
    return tables


def _cases(entries: list[Entry]) -> str:
    """Name the number of questions of each length."""
    counts = {entry["cases"] for entry in entries}
    fewest, most = min(counts), max(counts)
    return f"{most} cases" if fewest == most else f"{fewest} to {most} cases"


def comparison_tables(comparison: dict[str, Any]) -> list[ResultTable]:
    """Build a table for each task of a comparison, with a column of published figures."""
    tables = []
    rows = comparison["rows"]
    for task in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == task]
        metric = of_task[0]["metric"]
        header = ["method", "cases", metric if metric == "nats" else f"{metric}, %"]
        cells: list[list[str | Cell]] = [
            [row["method"], str(row["cases"]), _value_interval(row)] for row in of_task
        ]
        if any(row["published"] is not None for row in of_task):
            header.append("published, %")
            for line, row in zip(cells, of_task, strict=True):
                line.append("" if row["published"] is None else f"{row['published']:g}")
        title = f"{task}, {comparison['model']}: 95 % intervals"
        tables.append(ResultTable(title, header, cells))
    return tables


def tuning_table(tuning: dict[str, Any]) -> ResultTable:
    """Build the table of a search's candidates; the chosen method is bold."""
    title = f"{tuning['model']} at {tuning['length']} tokens: records of the search, 95 % intervals"
    rows = [
        (
            entry["method"],
            _accuracy_interval(entry),
            with_half_width(entry["difference"], entry["half_width"], 3),
            f"{100 * entry['best_share']:.0f}",
        )
        for entry in tuning["candidates"]
    ]
    header = ("method", "retrieval, %", "nats - original's", "chosen in %")
    return ResultTable(title, header, rows, tuning["chosen"])


def html(table: ResultTable) -> str:
    """Format a table as HTML for notebooks."""
    return table_html(table.title, *_plain(table))


def markdown(table: ResultTable) -> str:
    """Format a table as Markdown, below its title."""
    return formatted(table, "markdown").rstrip("\n")


def formatted(table: ResultTable, name: str) -> str:
    """Format a table as "csv", "markdown" or "latex"."""
    plain = _numbers(table) if name == "csv" else _plain(table)
    return FORMATS[name](table.title, *plain)


def _plain(table: ResultTable) -> tuple[Sequence[str], list[list[str]]]:
    """Return the header and the rows of a table as texts."""
    return table.header, [list(map(str, row)) for row in table.rows]


def _numbers(table: ResultTable) -> tuple[list[str], list[Sequence[str]]]:
    """Return the header and the rows of a table with a column for each number of its cells."""
    columns: dict[str, list[str]] = {}
    for name, *cells in zip(table.header, *table.rows, strict=True):
        parts = [c.parts(name) if isinstance(c, Cell) else {name: c} for c in cells]
        for key in dict.fromkeys([name, *(key for part in parts for key in part)]):
            columns[key] = [part.get(key, "") for part in parts]
    return list(columns), list(zip(*columns.values(), strict=True))


def _table(
    summary: dict[str, Any],
    entries: list[Entry],
    title: str,
    column: Callable[[Entry], str],
    cell: Callable[[Entry], str | Cell],
) -> ResultTable:
    """Build a table with a row for each method of entries, and a column for each column(entry)."""
    columns = list(dict.fromkeys(map(column, entries)))
    rows = []
    for method in summary["methods"]:
        cells = {column(entry): cell(entry) for entry in entries if entry["method"] == method}
        if cells:
            rows.append([method, *(cells.get(name, "") for name in columns)])
    return ResultTable(title, ["method", *columns], rows)


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
    return f"{form(entry['begin'])}–{form(entry['end'])}"


def _accuracy(entry: Entry) -> str:
    return "" if entry["accuracy"] is None else f"{100 * entry['accuracy']:.0f}"


def _accuracy_interval(entry: Entry) -> str | Cell:
    if entry["accuracy"] is None:
        return ""
    value, low, high = (100 * entry[key] for key in ("accuracy", "low", "high"))
    return with_ends(value, low, high)


def _gain(entry: Entry) -> Cell:
    return with_half_width(100 * entry["gain"], 100 * entry["gain_half_width"], 0)


def _nats(first: str) -> Callable[[Entry], str]:
    """Return how to show the nats of the first method, and the others' difference from them."""
    return lambda entry: (
        f"{entry['nats']:.3f}" if entry["method"] == first else f"{entry['difference']:+.3f}"
    )


def _value_interval(row: Entry) -> Cell:
    unit, digits = (1, 3) if row["metric"] == "nats" else (100, 1)
    value, low, high = (unit * row[key] for key in ("value", "low", "high"))
    return with_ends(value, low, high, digits)
