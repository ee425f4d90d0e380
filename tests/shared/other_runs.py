"""Another process that works in a folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLDER = """
import sys
from ntk_alibi import _files
with _files.only_run("--output", sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_run(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has the lock of a folder."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdin=pipe, stdout=pipe) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        yield run
