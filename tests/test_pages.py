"""Lines of README and pages have 100 columns, and figures equal the cells that they come from.

A comment behind a paragraph or table names the results file and its section, and then for each
figure the row and the column of its cell, as patterns:

    <!-- figures: studies/results/stretching.md#seeds
    71 % (51–90): dynamic-flat:2:query | 16x
    0.98 to 1.47: (T5|BLOOM).* | .*
    table -->

A range has the least and the greatest number of all cells that fit. A figure may be the cell's
number, its inverse (times of one as multiples of another's), 100 times it (%) or a thousandth (GB
of MB), rounded. "table" means each number of the table above, beside its first column, in any cell
of the section. A section is between markers, or below a heading of this name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from repository import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

MARKER = re.compile(r"^<!-- figures: (\S+)#(\S+)\n(.*?) ?-->$", re.MULTILINE | re.DOTALL)

NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?:e-?\d+)?(?!\w)")

#: Exponents of ten as pages write them: 7·10⁻⁷ for 7e-7.
EXPONENT, SUPERSCRIPTS = re.compile("·10([⁻⁰-⁹¹²³]+)"), str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")

#: A row's label, the column's heading and the cell.
Cell = tuple[str, str, str]


def marked() -> Iterator[tuple[Path, str, str, str, list[str]]]:
    """Yield page, the block above, results file, section and lines of each comment."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for found in MARKER.finditer(text):
            file, section, lines = found.groups()
            above = MARKER.sub("", text[: found.start()]).rstrip().split("\n\n")
            yield page, above[-1], file, section, lines.strip().split("\n")


MARKED = list(marked())


def cells(file: str, section: str) -> list[Cell]:
    """Return the cells of all tables between the markers of a section."""
    text = "\n" + (ROOT / file).read_text("utf-8")
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    if begin not in text:
        heading = next(line for line in text.splitlines() if slug(line) == section)
        begin, end = f"\n{heading}\n", "\n#"
    part = text.partition(begin)[2].partition(end)[0]
    found: list[Cell] = []
    for table in re.findall(r"(?:^\|.*\n)+", f"{part}\n", re.MULTILINE):
        header, _, *rows = (
            [cell.strip() for cell in re.sub(r"[`*]", "", line).strip().strip("|").split("|")]
            for line in table.splitlines()
        )
        found += [
            (row[0], name, cell)
            for row in rows
            for name, cell in zip(header[1:], row[1:], strict=True)
        ]
    assert found, f"{file} has no table in section {section}"
    return found


def slug(line: str) -> str | None:
    """Return the name of a heading in links."""
    if not line.startswith("#"):
        return None
    return re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")


def figures_in(text: str) -> list[str]:
    plain = EXPONENT.sub(lambda found: "e" + found[1].translate(SUPERSCRIPTS), text)
    return [number.replace(",", "") for number in NUMBER.findall(plain)]


def is_rounded(figure: str, value: str) -> bool:
    """Return whether a figure is a form of a value, rounded to its digits."""
    exact, slack = float(value), 0.5001 * unit(figure)
    if any(abs(float(figure) - form) <= slack for form in (exact, 100 * exact, exact / 1000)):
        return True
    least, most = exact - 0.5 * unit(value), exact + 0.5 * unit(value)
    return least > 0 and 1 / most - slack <= float(figure) <= 1 / least + slack


def unit(number: str) -> float:
    """Return the value of 1 at a number's last digit."""
    mantissa, _, exponent = number.partition("e")
    return float(10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])))


def test_some_figures_are_marked() -> None:
    assert {page.name for page, *_ in MARKED} >= {"README.md", "speed.md"}


@pytest.mark.parametrize(
    ("page", "block", "file", "section", "lines"),
    MARKED,
    ids=[f"{page.stem}-{section}" for page, _, _, section, _ in MARKED],
)
def test_figures_are_those_of_the_results(
    page: Path, block: str, file: str, section: str, lines: list[str]
) -> None:
    there = cells(file, section)
    for line in lines:
        if line == "table":
            everywhere = set(chain.from_iterable(figures_in(cell) for _, _, cell in there))
            rows = [row.split("|")[2:] for row in block.split("\n")[2:]]
            for number in chain.from_iterable(figures_in(cell) for row in rows for cell in row):
                assert any(is_rounded(number, value) for value in everywhere), number
            continue
        figure, row, column = re.fullmatch(r"(.+?): (.+) \| (.+)", line).groups()  # type: ignore[union-attr]
        assert figure in " ".join(block.split()), f"{page.name} must have {figure!r}"
        fitting = [
            cell
            for label, heading, cell in there
            if re.fullmatch(row, label) and re.fullmatch(column, heading)
        ]
        values = list(chain.from_iterable(map(figures_in, fitting)))
        assert values, f"no cell fits {line!r}"
        if re.search(r"\d to \d", figure):
            values = [min(values, key=float), max(values, key=float)]
            if not is_rounded(
                figures_in(figure)[0], values[0]
            ):  # of inverses the order is the other
                values.reverse()
            pairs = list(zip(figures_in(figure), values, strict=True))
            assert all(is_rounded(*pair) for pair in pairs), pairs
        for number in figures_in(figure):
            assert any(is_rounded(number, value) for value in values), (figure, values)


def test_text_has_lines_of_at_most_100_columns() -> None:
    """Tables, blocks of code and formulas have the lines that they need."""
    for path in (*PAGES, ROOT / "CHANGELOG.md"):
        text = re.sub(r"^(```|\$\$)[^\0]*?^\1", "", path.read_text("utf-8"), flags=re.MULTILINE)
        for line in text.splitlines():
            assert len(line) <= 100 or line.startswith(("|", "    ")), f"{path.name}: {line}"
