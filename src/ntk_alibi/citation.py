"""BibTeX of the package, and of the papers that its methods come from.

`references.bib` has each reference once. The docstring of a class or a function names its
references behind "Source:".
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import resources
from typing import Any

import ntk_alibi
from ntk_alibi.methods import parse_method

#: The package's own entry, as CITATION.cff has it.
OWN = """@software{{ntk_alibi,
  author = {{{{The ntk_alibi developers}}}},
  title = {{ntk\\_alibi: {summary}}},
  version = {{{version}}},
}}
"""


def cite(*things: Any) -> str:
    """Return BibTeX of this package, and of the papers that some of its methods come from.

    Args:
        things: biases, scalings and other objects, classes and functions of this package, or names
            of methods, such as "ntk:4".

    Returns:
        The entries, this package's first, each once. A method that is this package's own adds none.

    Raises:
        TypeError: a thing is not of this package.
        ValueError: a name is not that of a method.

    Example:
        >>> import ntk_alibi as na
        >>> [line for line in na.cite(na.KerpleLog).splitlines() if line.startswith("@")]
        ['@software{ntk_alibi,', '@misc{chi2022kerple,']
    """
    entries = {OWN.format(summary=(ntk_alibi.__doc__ or "").strip(), version=ntk_alibi.__version__)}
    texts = [text for thing in things for text in _sources(thing)]
    found = [entry for entry in references() if any(mark_of(entry) in text for text in texts)]
    return "\n".join([*entries, *found])


def _sources(thing: Any) -> list[str]:
    """Return the texts behind "Source:" in the docstrings of a thing."""
    if isinstance(thing, str):
        method = parse_method(thing, 2)  # no source depends on the training length
        parts = [part for part in (method.scaling, method.log_n) if part is not None]
        return [text for part in [*parts, ntk_alibi.ALiBi] for text in _sources(part)]
    owner = thing if inspect.isclass(thing) or inspect.isroutine(thing) else type(thing)
    if owner.__module__.partition(".")[0] != "ntk_alibi":
        raise TypeError(f"things must be of ntk_alibi, or names of methods, got {thing!r}")
    if sys.flags.optimize >= 2:
        raise ValueError("cite must run without python's option -OO, which removes its sources")
    return re.findall(r"Source: (.*)", inspect.getdoc(owner) or "", re.DOTALL)


def references() -> list[str]:
    """Return the entries of references.bib."""
    text = resources.files("ntk_alibi").joinpath("references.bib").read_text("utf-8")
    return [entry.strip() + "\n" for entry in text.split("\n\n")]


def mark_of(entry: str) -> str:
    """Return the arXiv number or the address by which docstrings name a reference."""
    field = re.search(r"(?:eprint = \{|url = \{https://(?:github.com/)?)([^}]*)\}", entry)
    assert field is not None, entry
    return field[1]
