"""The compiled core, called without the Python package before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_wrong_types_axes_and_sizes_never_end_the_process() -> None:
    program = Path(__file__).with_name("core_program.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    made = done.stdout.splitlines()
    assert done.returncode == 0, f"{made[-1]}: {done.stderr[-2000:]}"
    assert made[-1] == "done"
    assert len(made) > 3000
