"""Tables of studies, and data frames as texts.

A table is a frame of texts with a title in `attrs`; its first column names the rows. A summary is a
`Summary`, which imports this module.
"""

from __future__ import annotations

import html as escaping
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ntk_alibi.evaluation.report.cells import with_ends, with_half_width
from ntk_alibi.evaluation.report.markdown import counted

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def study_tables(summary: Any) -> list[DataFrame]:
    """Return the tables of a study: retrieval by length and by distance, nats by position."""
    unit = f"{summary.train_length} tokens"
    methods = list(summary.methods)
    tables = []
    for task, cells in summary.retrieval.groupby("task", sort=False):
        fewest, most = cells["cases"].min(), cells["cases"].max()
        cases = counted(most, "case") if fewest == most else f"{fewest} to {most} cases"
        title = f"{task}: accuracy in %, 95 % interval (1x = {unit}; {cases})"
        accuracy = [
            with_ends(*row) for row in 100 * cells[["accuracy", "low", "high"]].to_numpy(float)
        ]
        tables.append(_table(methods, cells, title, _multiples(cells), accuracy))
        others = cells[(cells["method"] != methods[0]) & cells["gain"].notna()]
        if len(others):
            title = (
                f"{task}: points over {methods[0]}, paired, 95 % interval (none if all records "
                "agree)"
            )
            gains = 100 * others[["gain", "gain_half_width"]].to_numpy(float)
            points = [with_half_width(gain, width, 0) for gain, width in gains]
            tables.append(_table(methods, others, title, _multiples(cells)[others.index], points))
        ranges = summary.by_distance.dropna(subset="accuracy")
        ranges = ranges[ranges["task"] == task]
        if len(ranges):
            title = f"{task}: accuracy in % by distance of the answer / {unit}"
            percents = [f"{100 * share:.0f}" for share in ranges["accuracy"]]
            tables.append(_table(methods, ranges, title, _ranges(ranges), percents))
    prose = summary.perplexity
    if len(prose):
        widest = prose["half_width"].max(skipna=False)
        title = f"prose: nats by position / {unit}; rest minus {methods[0]}"
        title += f" (95 %: up to ± {widest:.3f})" if widest == widest else ""
        nats = [
            f"{row.nats:.3f}" if row.method == methods[0] else f"{row.difference:+.3f}"
            for row in prose.itertuples()
        ]
        tables.append(_table(methods, prose, title, _ranges(prose), nats))
    return tables


def study_rows(summary: Any) -> list[DataFrame]:
    """Return the data frames of a study's summary, each with its name there as the title."""
    frames = {name: getattr(summary, name) for name in ("retrieval", "by_distance", "perplexity")}
    return [with_title(frame, name) for name, frame in frames.items() if len(frame)]


def with_title(frame: DataFrame, title: str) -> DataFrame:
    """Return a copy of a frame with a title."""
    frame = frame.copy()
    frame.attrs["title"] = title
    return frame


def printed(table: DataFrame, width: int) -> str:
    """Return a table for a terminal; columns beyond its width follow below."""
    first = table.columns[0]
    named = table.set_index(first).rename_axis(index=None, columns=first)
    lines = named.to_string(line_width=width).splitlines()
    return "\n".join(["", table.attrs["title"], *(line.rstrip(" \\") for line in lines)])


def html(table: DataFrame) -> str:
    """Return a table as HTML for notebooks."""
    title = escaping.escape(table.attrs["title"])
    return f"<p>{title}</p>{table.to_html(index=False, border=0)}"


def formatted(table: DataFrame, name: str) -> str:
    """Return a table as "csv", "markdown" or "latex", with its title if it has one.

    Markdown needs tabulate; LaTeX needs its package booktabs.
    """
    title = table.attrs.get("title", "")
    aligned = ["left"] + ["right"] * (len(table.columns) - 1)
    if name == "csv":
        above = f"# {title}\n" if title else ""
        return f"{above}{table.to_csv(index=False)}"
    if name == "markdown":
        above = f"*{title}*\n\n" if title else ""
        text = table.to_markdown(index=False, disable_numparse=True, colalign=aligned)
        return f"{above}{text}\n"
    latex: str = table.to_latex(
        index=False,
        escape=True,
        caption="".join(f"\\{x}" if x in "&%$#_{}" else x for x in title) or None,
        column_format="".join(side[0] for side in aligned),
    )
    return latex


def _table(
    methods: Sequence[str], cells: DataFrame, title: str, columns: Series[str], texts: Sequence[str]
) -> DataFrame:
    """Return a table with a row for each method of cells, and a column for each name."""
    made = cells[["method"]].assign(column=columns, text=texts)
    wide = made.pivot(index="method", columns="column", values="text")
    rows = [name for name in methods if name in wide.index]
    wide = wide.loc[rows, columns.unique()].fillna("").rename_axis(columns=None)
    return with_title(wide.reset_index(), title)


def _multiples(cells: DataFrame) -> Series[str]:
    return _shortest(lambda form: cells["multiple"].map(form) + "x")


def _ranges(cells: DataFrame) -> Series[str]:
    return _shortest(lambda form: cells["begin"].map(form) + "–" + cells["end"].map(form))


def _shortest(named: Callable[[Callable[[float], str]], Series[str]]) -> Series[str]:
    """Return the names of columns, with two digits where that keeps them apart."""
    short, exact = named(_two_digits), named("{:g}".format)
    return short if short.nunique() == exact.nunique() else exact


def _two_digits(number: float) -> str:
    rounded = round(number, 2)
    return f"{rounded:g}" if rounded else f"{number:.2g}"
