"""Tables of wrong arguments, and a check of errors: lines that begin with an argument's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fuzz.kinds.arguments import LONGEST

#: The name that an error begins with, its class, and the arguments that are wrong.
Rows = list[tuple[str, type[Exception], dict[str, Any]]]

#: By name: a function, its right arguments, and rows.
Table = dict[str, tuple[Callable[..., Any], dict[str, Any], Rows]]

#: What came, or that nothing came, or that anything did.
CAME = r"got | must (be None|be given|be contiguous|not)|is (missing|unknown)|use "


def check_line(error: Exception, *names: str) -> None:
    """Check that an error is a line that begins with a name and says what was expected and came."""
    line = str(error)
    assert re.match(rf"({'|'.join(map(re.escape, names))})\b", line), line
    assert line.isprintable(), line
    assert len(line) <= LONGEST, line
    assert re.search(r" (must|is for) ", line), line
    assert re.search(CAME, line), line


def cases(table: Table) -> list[Any]:
    """Return parameters of a test: function, arguments, the name and the class of the error."""
    return [
        pytest.param(function, right | wrong, argument, error, id=f"{name}: {argument} {i}")
        for name, (function, right, rows) in table.items()
        for i, (argument, error, wrong) in enumerate(rows)
    ]
