"""A check of errors: lines that begin with an argument's name."""

from __future__ import annotations

import re

from fuzz.kinds.arguments import LONGEST

#: What came, or that nothing came, or that anything did.
CAME = r"got | must (be None|be given|be contiguous|not)|is (missing|unknown|no argument)|use "


def check_line(error: Exception, *names: str) -> None:
    """Check that an error is a line that begins with a name and says what was expected and came."""
    line = str(error)
    assert re.match(rf"({'|'.join(map(re.escape, names))})\b", line), line
    assert line.isprintable(), line
    assert len(line) <= LONGEST, line
    assert re.search(r" (must|is for|is no argument of) ", line), line
    assert re.search(CAME, line), line
