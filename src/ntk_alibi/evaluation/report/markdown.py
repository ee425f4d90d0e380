"""Markdown tables, the description of the machine, and sections of documents."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import ntk_alibi
from ntk_alibi import _files, _installed


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns but the first are aligned right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def describe_machine(peers: Sequence[str] = ()) -> str:
    """Describe processor, threads, versions of packages and of installed peers, and the date."""
    info = ntk_alibi.info()
    versions = {**info["packages"], **{name: _installed.version_of(name) for name in peers}}
    packages = ", ".join(f"{k} {v}" for k, v in versions.items() if v and k != "pandas")
    return (
        f"{processor()}, {counted(info['threads'], 'thread')}, "
        f"{info['isa']}; Python {platform.python_version()}, {packages}; "
        f"{datetime.datetime.now(datetime.timezone.utc).date()}"
    )


def counted(number: float, noun: str) -> str:
    """Return a number and a noun, in the plural if it is not 1."""
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


def processor() -> str:
    """Name the processor with family and model, which tell cores of one name apart."""
    cpuinfo = Path("/proc/cpuinfo")  # Linux has it
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    if len(fields) < 3:
        return platform.processor()
    return f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']})"


def section(path: Path, name: str) -> str:
    """Return the text between the markers of section `name`.

    Raises:
        ValueError: the document lacks the markers.
    """
    _, text, _ = _split(path, name)
    return text.strip()


def replace_section(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers of section `name`.

    Raises:
        ValueError: the document lacks the markers.
    """
    before, _, after = _split(path, name)
    with _files.replacing(path) as file:
        file.write_text(f"{before}\n{text}\n{after}", "utf-8", newline="\n")


def _split(path: Path, name: str) -> tuple[str, str, str]:
    """Return the text up to the first marker of a section, its own, and from the second one on."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin_marker, rest = path.read_text("utf-8").partition(begin)
    text, end_marker, after = rest.partition(end)
    if not (begin_marker and end_marker):
        raise ValueError(f"{path} must hold the markers {begin} and {end}")
    return before + begin, text, end + after
