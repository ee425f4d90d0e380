"""Subcommand `ntk-alibi notebooks`."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import ntk_alibi
from ntk_alibi import _files
from ntk_alibi.cli import subcommand

#: Files that are copied, from the wheel's folder or from the repository.
PARTS = ("notebooks/*.ipynb", "docs/pictures/extrapolation.json")


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "notebooks",
        _run,
        "copy the notebooks to a folder and open them in JupyterLab",
        "ntk-alibi notebooks\n  ntk-alibi notebooks my-copies --copy-only",
        extra="notebook",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("ntk-alibi-notebooks"),
        help="folder of the copies; files that are there stay as they are (default: %(default)s)",
    )
    parser.add_argument("--copy-only", action="store_true", help="copy without starting JupyterLab")


def _run(options: argparse.Namespace) -> None:
    if not options.copy_only and importlib.util.find_spec("jupyterlab") is None:
        raise ImportError("opening notebooks needs jupyterlab (--copy-only copies them without it)")
    copied, kept = copy(options.folder)
    print(f"{options.folder}: {copied} files copied, {kept} were there and stay as they are")
    notebooks = str(options.folder / "notebooks")
    if options.copy_only:
        print(f"open them by: {shlex.join(['jupyter', 'lab', notebooks])}")
        return
    sys.stdout.flush()
    # In this process: Ctrl-C is JupyterLab's, which asks before it ends its kernels, and while it
    # starts, ours.
    from jupyterlab.labapp import main

    main([notebooks])


def copy(folder: Path) -> tuple[int, int]:
    """Copy the notebooks and what they read; return how many were copied, and how many were there.

    Raises:
        ValueError: this installation has no notebooks.
        OSError: the folder cannot be written.
    """
    package = Path(ntk_alibi.__file__).parent
    roots = [package / "_notebooks", package.parents[1]]  # in a wheel, and in a repository
    found = next(
        (root for root in roots if all(any(root.glob(pattern)) for pattern in PARTS)), None
    )
    if found is None:
        raise ValueError("the installation of ntk_alibi must hold notebooks, got one without them")
    _files.writable_folder(folder)
    counts = [0, 0]
    for path in (path for pattern in PARTS for path in sorted(found.glob(pattern))):
        target = folder / path.relative_to(found)
        counts[target.exists()] += 1
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with _files.replacing(target) as file:
                file.write_text(_without_pages(path.read_text("utf-8")), "utf-8")
    return counts[0], counts[1]


def _without_pages(text: str) -> str:
    """Name the pages that a notebook links to, since they are not copied."""
    link = r"\[([^][]*)\]\(\.\./(docs/[\w/-]+\.md)[^)]*\)"
    return re.sub(link, r"\1 (\2 of the repository)", text)
