"""Tests that type checkers know what calls return, and refuse wrong ones, in users' code."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT

CALLS = ROOT / "tests/shared/typed_calls.py"

#: Code with one error a line, and a word of each checker's message is its line number.
WRONG = """\
import numpy as np
import torch
import ntk_alibi as na

array, tensor = np.ones((1, 2, 3, 4), np.float32), torch.ones(1, 2, 3, 4)
na.attention(array, tensor, array)
na.attention(array, array, array, is_causal=True)
na.attention(array, array, array, align="middle")
na.attention(array, array, array).backward()
na.build_alibi_tensor(np.ones((1, 3)), 2, np.float32, anchor="middle")
"""

CHECKERS = {"mypy": ["mypy", "--strict", "--config-file="], "pyright": ["pyright"]}


def check(checker: str, path: Path) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    command = [sys.executable, "-m", *CHECKERS[checker], str(path)]
    if checker == "pyright":
        command[3:3] = ["--pythonpath", sys.executable]
    return subprocess.run(command, capture_output=True, text=True, cwd=path.parent)


def test_the_calls_run() -> None:
    done = subprocess.run([sys.executable, str(CALLS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_results_have_the_types_of_their_arguments(checker: str, tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text(CALLS.read_text())
    done = check(checker, path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_wrong_calls_are_refused(checker: str, tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text(WRONG)
    done = check(checker, path)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = range(1 + WRONG[: WRONG.index("na.attention")].count("\n"), 1 + WRONG.count("\n"))
    for line in lines:
        assert f"user.py:{line}:" in done.stdout, done.stdout
