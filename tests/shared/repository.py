"""The root folder of this repository, and environments for tests of other versions of packages."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make_environment(folder: Path, *requirements: str) -> Path:
    """Make an environment in a folder, and return its Python; skip the test if pip cannot.

    It has a few packages of its own, and borrows all others from this environment.

    Args:
        folder: a folder that is not there yet.
        requirements: what pip installs, without dependencies, before the borrowed packages.
    """
    import venv  # which Windows' embedded Python lacks

    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    borrowed = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (packages / "borrowed.pth").write_text("".join(borrowed))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
    done = subprocess.run(
        [*pip, "--target", packages, *requirements], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"pip cannot install {', '.join(requirements)} here: {done.stderr[-200:]}")
    return folder / "bin/python"


def run_tests(python: Path, *arguments: str) -> str:
    """Run quick tests with an environment's Python, and return what pytest prints."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "-m", "not slow", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests/shared")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-500:]
    return done.stdout
