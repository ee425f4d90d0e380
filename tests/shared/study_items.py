"""What processes of `studies.command` work on in tests; each imports this module, and no more."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def square(number: int) -> int:
    return number**2


def die(name: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return name


def sleep_or_fail(folder: Path | None) -> None:
    if folder is None:
        time.sleep(1)  # until the other process works
        raise ValueError("folder must be a path, got None")
    sleep(folder)


def sleep(folder: Path) -> None:
    (folder / f"{os.getpid()}").touch()
    time.sleep(600)
