"""A test of loading by a Python that removes docstrings."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_python_without_docstrings_is_named() -> None:
    program = "from ntk_alibi.models import load; load()"
    done = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True)
    if done.returncode:  # transformers may come to need no docstrings
        (line,) = done.stderr.strip().splitlines()[-1:]
        assert line.startswith("ValueError: model must be loaded by a Python without -OO")
