"""Markdown: tables, and sections of documents that a run replaces."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import ntk_alibi


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all but the first column aligned right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def describe_machine(peers: Sequence[str] = ()) -> str:
    """What and when this is measured; with the versions of other packages, where installed."""
    info = ntk_alibi.info()
    versions = {**info["packages"], **{name: _version(name) for name in peers}}
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    packages = ", ".join(f"{k} {v}" for k, v in versions.items() if v and k != "rich")
    return (
        f"{model.group(1) if model else platform.processor()}, {info['threads']} threads, "
        f"{info['isa']}; Python {platform.python_version()}, {packages}; "
        f"{datetime.datetime.now(datetime.timezone.utc).date()}"
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def replace_section(path: Path, name: str, text: str) -> None:
    """Put text between the markers of section `name`.

    Raises:
        ValueError: the document has no such markers.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = path.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"{path} must hold the markers {begin} and {end}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
