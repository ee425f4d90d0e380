"""Tests that type checkers know what calls return, and refuse wrong ones, in users' code."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]


CALLS = Path(__file__).with_name("typed_program.py")

#: Code with one error a line, from the first call on.
WRONG = """\
import numpy as np
import torch
import ntk_alibi as na

array, tensor = np.ones((1, 2, 3, 4), np.float32), torch.ones(1, 2, 3, 4)
na.attention(array, tensor, array)
na.attention(array, array, array, is_causal=True)
na.attention(array, array, array, align="middle")
na.attention(array, array, array, group=None)
na.attention(array, array, array).backward()
na.build_alibi_tensor(np.ones((1, 3)), 2, np.float32, anchor="middle")
"""

WRONG_LINES = range(1 + WRONG[: WRONG.index("na.attention")].count("\n"), 1 + WRONG.count("\n"))

#: mypy has `strict = true` there, and the cache of `make lint` knows torch's types already.
CHECKERS = {
    "mypy": ["mypy", "--config-file", str(ROOT / "pyproject.toml")],
    "pyright": ["pyright", "--pythonpath", sys.executable],
}


#: What users copy, checked as their files: the code of pages, each as one file, and examples.
COPIED = ("README.md", "docs/quickstart.md", "examples/find_a_line.py", "examples/stretching.py")


def code_of(path: str) -> str:
    """Return the Python of a page or a file of this repository."""
    text = (ROOT / path).read_text()
    return (
        text if path.endswith(".py") else "\n".join(re.findall("```python\n(.*?)```", text, re.S))
    )


def test_the_calls_run() -> None:
    runpy.run_path(str(CALLS), run_name="__main__")


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_calls_have_their_types_and_wrong_ones_are_refused(
    checker: str, tmp_path: Path
) -> None:
    """Check all files by one command: it reads torch's own types for most of its time."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(CALLS.read_text())
    wrong.write_text(WRONG)
    copied = [tmp_path / f"copied_{number}.py" for number in range(len(COPIED))]
    for file, path in zip(copied, COPIED, strict=True):
        file.write_text(code_of(path))
    done = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker], *map(str, (right, wrong, *copied))],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "right.py:" not in done.stdout, done.stdout
    assert "copied_" not in done.stdout, done.stdout
    for line in WRONG_LINES:
        assert f"wrong.py:{line}:" in done.stdout, done.stdout
    others = [
        line for line in done.stdout.splitlines() if "error:" in line and "wrong.py" not in line
    ]
    assert others == []
