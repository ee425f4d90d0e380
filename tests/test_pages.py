"""Links of README and pages lead somewhere, and figures that are linked to results agree with them.

`[71 (51–90)](studies/results/stretching.md#seeds)` is a figure: a link whose text has digits and
whose target is a section of a results file. Tables of results are not copied: the site includes
them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repository import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "cpp/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "dev").glob("*.md")),
    *sorted(ROOT.glob("*/results/*.md")),
]

LINK = re.compile(r"\[([^][]*)\]\(([^)#:\s]*)#?([^)\s:]*)\)")

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")

FIGURES = [
    (page, *link.groups())
    for page in PAGES
    for link in LINK.finditer(page.read_text("utf-8"))
    if "/results/" in link[2] and NUMBER.search(link[1])
]


def sections(path: Path) -> dict[str, str]:
    """Return what follows each heading of a document, by the anchor that forges make of it."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
    anchors = (re.sub(r"[^\w -]", "", x).lower().replace(" ", "-") for x in parts[1::2])
    return dict(zip(anchors, parts[2::2], strict=True))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    for _, target, anchor in LINK.findall(prose):
        found = path.parent / target if target else path
        assert found.exists(), f"{path.name} links to {target}"
        if anchor and found.suffix == ".md":
            assert anchor in sections(found), f"{path.name} links to {target}#{anchor}"


def test_the_example_of_the_readme_is_the_one_that_pages_include() -> None:
    example = (ROOT / "examples/find_a_line.py").read_text()
    assert f"```python\n{example}```\n" in (ROOT / "README.md").read_text()
    for page in ("docs/index.md", "docs/quickstart.md"):
        assert "../examples/find_a_line.py" in (ROOT / page).read_text()


def test_figures_of_the_readme_are_linked() -> None:
    assert ROOT / "README.md" in {page for page, *_ in FIGURES}


@pytest.mark.parametrize(
    ("page", "figure", "file", "anchor"), FIGURES, ids=[f"{x.stem}-{y}" for x, y, *_ in FIGURES]
)
def test_figures_are_in_a_cell_of_the_section_that_they_link_to(
    page: Path, figure: str, file: str, anchor: str
) -> None:
    words = " ".join(NUMBER.findall(figure))
    cells = re.split(r"[|\n]", sections(page.parent / file)[anchor])
    assert any(f" {words} " in f" {' '.join(NUMBER.findall(cell))} " for cell in cells)


def test_included_tables_are_there() -> None:
    """Where a marker were missing, the site would have no table, or the whole file."""
    block = r'^```{include} (\S+)\n:start-after: "(.+)"\n:end-before: "(.+)"\n```$'
    blocks = [
        (page, *found)
        for page in PAGES
        for found in re.findall(block, page.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(blocks) > 5
    for page, file, begin, end in blocks:
        after = (page.parent / file).read_text("utf-8").partition(begin)[2]
        assert end in after, (page.name, file, end)
        assert "\n| " in after.partition(end)[0], (page.name, file, begin)
