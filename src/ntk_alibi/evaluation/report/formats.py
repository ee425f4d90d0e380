"""Plain tables as text: CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from ntk_alibi.evaluation.report import markdown

Rows = Sequence[Sequence[str]]

#: A number without a sign.
_NUMBER = r"\d*\.?\d+"

#: Characters that LaTeX writes in another way.
_SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "<": r"$<$", ">": r"$>$", "∞": r"$\infty$"}
)


def as_csv(title: str, header: Sequence[str], rows: Rows) -> str:
    """Format a table as CSV, below a line of its title that begins with #."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return f"{_comment('#', title)}{text.getvalue()}"


def as_markdown(title: str, header: Sequence[str], rows: Rows) -> str:
    """Format a table as Markdown, below its title."""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    above = f"*{title}*\n\n" if title else ""
    return f"{above}{markdown.table(header, cells)}\n"


def as_latex(title: str, header: Sequence[str], rows: Rows) -> str:
    """Format a table as a LaTeX environment without packages; its title is the caption."""
    lines = [" & ".join(map(_in_latex, row)) for row in [header, *rows]]
    body = "\n".join(f"{line} \\\\" for line in lines)
    body = body.replace("\n", "\n\\hline\n", 1)
    caption = f"\\caption{{{title.translate(_SPECIAL)}}}\n" if title else ""
    columns = "l" + "r" * (len(header) - 1)
    return (
        f"\\begin{{table}}\n{caption}\\begin{{tabular}}{{{columns}}}\n\\hline\n{body}\n"
        "\\hline\n\\end{tabular}\n\\end{table}\n"
    )


def _in_latex(cell: str) -> str:
    """Format a cell, in which minus signs, half-widths and ranges of numbers get their dashes."""
    text = cell.translate(_SPECIAL)
    text = re.sub(rf"(?<![\w.-])({_NUMBER})-({_NUMBER})(?![\w.-])", r"\1--\2", text)
    return re.sub(rf"^([+-]{_NUMBER})(?: \$\\pm\$({_NUMBER}))?$", _signed, text)


def _signed(found: re.Match[str]) -> str:
    return f"${found[1]}" + (f"\\pm{found[2]}$" if found[2] else "$")


def _comment(mark: str, title: str) -> str:
    return f"{mark} {' '.join(title.split())}\n" if title else ""


#: The formats by their names on the command line.
FORMATS: dict[str, Callable[[str, Sequence[str], Rows], str]] = {
    "csv": as_csv,
    "markdown": as_markdown,
    "latex": as_latex,
}
