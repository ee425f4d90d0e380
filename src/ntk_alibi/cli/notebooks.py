"""Subcommand `ntk-alibi notebooks`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import ntk_alibi
from ntk_alibi import _files
from ntk_alibi.cli import subcommand

#: The files to copy, in a wheel or in a checkout.
PARTS = ("notebooks/*.ipynb", "docs/pictures/extrapolation.json")


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    summary = "copy the notebooks to a folder"
    parser = subcommand.add(commands, "notebooks", _run, summary, "ntk-alibi notebooks my-copies")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("ntk-alibi-notebooks"),
        help="folder of the copies; files that are there stay as they are (default: %(default)s)",
    )


def _run(options: argparse.Namespace) -> None:
    package = Path(ntk_alibi.__file__).parent
    roots = [package / "_notebooks", package.parents[1]]  # of a wheel, of a checkout
    found = next(
        (root for root in roots if all(any(root.glob(pattern)) for pattern in PARTS)), None
    )
    if found is None:
        raise ValueError("the installation of ntk_alibi must hold notebooks, got one without them")
    folder = _files.writable_folder(options.folder)
    copied = kept = 0
    for path in (path for pattern in PARTS for path in sorted(found.glob(pattern))):
        target = folder / path.relative_to(found)
        if target.exists():
            kept += 1
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with _files.replacing(target) as file:
            file.write_text(_without_pages(path.read_text("utf-8")), "utf-8")
        copied += 1
    print(f"{folder}: {copied} files copied, {kept} were there and stay as they are")
    print(f"open them by: {_files.command_line(['jupyter', 'lab', str(folder / 'notebooks')])}")


def _without_pages(text: str) -> str:
    """Replace links to pages, which are not copied, by the names of the pages."""
    link = r"\[([^][]*)\]\(\.\./(docs/[\w/-]+\.md)[^)]*\)"
    return re.sub(link, r"\1 (\2 of the repository)", text)
