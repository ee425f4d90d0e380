"""Turn a checkout into what a release is made of: `python release.py ADDRESS`.

Before a release the address of the repository is a placeholder, and README and quickstart install
from a checkout. This program fills the address in, and lets them install the package.
`python release.py --check` says what is left to fill.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

#: The address before there is one; no computer may have a name that ends in "invalid" (RFC 2606).
PLACEHOLDER = "https://repository.invalid/ntk_alibi"

#: Files that name the address, or say how to install the package.
FILES = ("pyproject.toml", "CITATION.cff", "README.md")
PAGES = "docs/**/*.md"

#: A paragraph that a release does not have, and what installs a checkout.
BEFORE_A_RELEASE = re.compile(r"^\*Before the first release\*(?:.+\n)*\n?", re.MULTILINE)
CHECKOUT, PACKAGE = 'pip install ".[', 'pip install "ntk-alibi['


def files(root: Path) -> list[Path]:
    """Return the files of a checkout that a release may change."""
    return [*(root / name for name in FILES), *sorted(root.glob(PAGES))]


def filled(text: str, address: str) -> str:
    """Return the text of a file as a release has it."""
    return BEFORE_A_RELEASE.sub("", text.replace(PLACEHOLDER, address).replace(CHECKOUT, PACKAGE))


def fill(root: Path, address: str) -> list[str]:
    """Fill an address into a checkout; return the names of the files that changed.

    Raises:
        ValueError: the address is none.
    """
    if not re.fullmatch(r"https://[\w.-]+\.[a-z]+(/[\w.-]+)+", address) or "invalid" in address:
        raise ValueError(f"ADDRESS must be like https://forge.org/name/ntk_alibi, got {address!r}")
    changed = []
    for path in files(root):
        name, before = path.relative_to(root).as_posix(), path.read_text("utf-8")
        if (after := filled(before, address)) != before:
            path.write_text(after, "utf-8")
            changed.append(name)
    return changed


def left(root: Path) -> list[str]:
    """Return the lines of a checkout that a release must not have, as file:line: text."""
    lines = []
    for path in files(root):
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if filled(line, "") != line:
                lines.append(f"{name}:{number}: {line.strip()[:100]}")
    return lines


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("address", nargs="?", metavar="ADDRESS", help="address of the repository")
    one.add_argument("--check", action="store_true", help="say what is left to fill")
    options = parser.parse_args()
    root = Path(__file__).parent
    if options.check:
        if lines := left(root):
            sys.exit("\n".join(["not filled: run python release.py ADDRESS", *lines]))
        return
    try:
        print("\n".join(fill(root, options.address)))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
