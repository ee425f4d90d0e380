"""The entries of the reference: a block `{names}` of a page becomes a table, each name a page.

A line of a block is a name below `ntk_alibi`, or `folder.*` for the names that no page lists by
itself: what the folder defines of `ntk_alibi.__all__`, so that a new bias or scaling needs no
line; if there are none, all public names of the module. After a colon stand members of classes, `*`
for all.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import ntk_alibi as na

BLOCK = re.compile(r"^```{names}\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
PAGES = Path(__file__).parent / "reference"


class Entry(NamedTuple):
    """A name below `ntk_alibi` and the members that its description has."""

    name: str
    members: tuple[str, ...]

    @property
    def thing(self) -> Any:
        """The object."""
        module, _, name = f"ntk_alibi.{self.name}".rpartition(".")
        return getattr(import_module(module), name)


def blocks(text: str) -> Iterator[list[Entry]]:
    """Yield the lines of each block as they stand."""
    for block in BLOCK.findall(text):
        pairs = (line.partition(":") for line in block.split("\n"))
        yield [Entry(name, tuple(re.findall(r"[*\w]+", members))) for name, _, members in pairs]


def entries(lines: list[Entry]) -> list[Entry]:
    """Return one entry for each name of a block."""
    pages = (page.read_text() for page in PAGES.glob("*.md"))
    listed = {entry.name for text in pages for block in blocks(text) for entry in block}
    result = []
    for name, members in lines:
        names = [name]
        if name.endswith(".*"):
            names = [x for x in names_of(name.removesuffix(".*")) if x not in listed]
        result += [Entry(x, members) for x in names]
    return result


def names_of(folder: str) -> list[str]:
    """Return the public names of a folder or a module."""
    path = f"ntk_alibi.{folder}"
    places = {x: getattr(getattr(na, x), "__module__", "") for x in na.__all__}
    defined = [x for x, place in places.items() if f"{place}.".startswith(f"{path}.")]
    if defined:
        return defined
    module = import_module(path)
    own = [x for x, y in vars(module).items() if getattr(y, "__module__", "") == path]
    names = getattr(module, "__all__", [x for x in own if not x.startswith("_")])
    return [f"{folder}.{x}" for x in names]


def heading(entry: Entry) -> str:
    """Return the name of an entry as programs write it after `import ntk_alibi as na`."""
    first = entry.name.partition(".")[0]
    return f"na.{entry.name}" if first in na.__all__ else f"ntk_alibi.{entry.name}"


def described(entry: Entry) -> str:
    """Return the page of an entry, as reStructuredText."""
    title = f"``{heading(entry)}``"
    head = f"{title}\n{'=' * len(title)}\n\n.. currentmodule:: ntk_alibi\n\n"
    path = f"ntk_alibi.{entry.name}" if "." in entry.name else entry.name
    if not inspect.isclass(entry.thing):
        return f"{head}.. autofunction:: {path}\n"
    text = f"{head}.. autoclass:: {path}\n"
    if entry.members == ("*",):
        return f"{text}   :members:\n"
    for member in entry.members:
        if hasattr(entry.thing, member):
            found = inspect.getattr_static(entry.thing, member)
            kind = "method" if isinstance(found, classmethod) or callable(found) else "property"
            text += f"\n   .. auto{kind}:: {path}.{member}\n"
    return text


def write_pages(folder: Path) -> None:
    """Write a page for each entry of the blocks of a folder's pages, below `api`."""
    pages = folder / "api"
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir()
    for page in PAGES.glob("*.md"):
        for block in blocks(page.read_text()):
            for entry in entries(block):
                pages.joinpath(f"{entry.name}.rst").write_text(described(entry))


def expanded(text: str) -> str:
    """Return a page with its blocks as tables of the names, which lead to their pages."""

    def block(match: re.Match[str]) -> str:
        (lines,) = blocks(match[0])
        found = [entry.name for entry in entries(lines)]
        table = "\n".join(f"   {name}" for name in found)
        contents = "\n".join(f"   {name} <api/{name}>" for name in found)
        return (
            "```{eval-rst}\n.. currentmodule:: ntk_alibi\n\n"
            f".. autosummary::\n   :nosignatures:\n\n{table}\n\n"
            f".. toctree::\n   :hidden:\n\n{contents}\n```"
        )

    return BLOCK.sub(block, text)
