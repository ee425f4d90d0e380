"""A full disk, simulated for this process."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """Let no file of this process grow beyond a number of bytes.

    Modules imported here leave no bytecode, because Python would store it cut off, and later
    processes could not read it.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with patch.object(sys, "dont_write_bytecode", True):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
