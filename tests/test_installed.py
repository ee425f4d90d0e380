"""Tests of what is installed: the OpenMP library of the core, and data that may ship apart."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ntk_alibi import _core
from ntk_alibi._installed import install_line

#: The library that the core needs, and a name of the same length that no system has.
OPENMP, ABSENT = b"libgomp.so.1", b"libgomq.so.1"

PACKAGE = Path(__file__).parents[1] / "src/ntk_alibi"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the package, whose core needs a library that is not there."""
    core = Path(_core.__file__)
    if OPENMP not in core.read_bytes():
        pytest.skip(f"the core was not built with {OPENMP.decode()}")
    shutil.copytree(PACKAGE, tmp_path / "ntk_alibi", ignore=shutil.ignore_patterns("*.so", "*.xz"))
    patched = core.read_bytes().replace(OPENMP, ABSENT)
    (tmp_path / "ntk_alibi" / core.name).write_bytes(patched)
    return tmp_path


def imported(folder: Path) -> subprocess.CompletedProcess[str]:
    """Import the package of a folder, whose torch comes before the installed one."""
    code = "import ntk_alibi as na; print(na.alibi_slopes(1), na.__file__)"
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch/__init__.py").write_text("raise AssertionError('torch was imported')")
    # Without site, an editable install does not come before the folder.
    paths = f"{folder}{os.pathsep}{Path(np.__file__).parents[1]}"
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_without_openmp_a_sentence_says_what_to_install(folder: Path) -> None:
    done = imported(folder)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ImportError: ntk_alibi needs the library libgomq.so.1, which was not found: install"
    )


def test_the_openmp_library_of_torch_will_do(folder: Path) -> None:
    maps = Path("/proc/self/maps").read_text().split()
    (library,) = {Path(word) for word in maps if Path(word).name.startswith(OPENMP.decode())} or [
        None
    ]
    if library is None:
        pytest.skip("this process uses another OpenMP library")
    (folder / "torch/lib").mkdir(parents=True)
    renamed = library.read_bytes().replace(OPENMP, ABSENT)
    (folder / "torch/lib" / ABSENT.decode()).write_bytes(renamed)
    done = imported(folder)
    assert done.returncode == 0, done.stderr
    assert str(folder) in done.stdout


def needs_of(name: str, extras: frozenset[str], found: dict[str, frozenset[str]]) -> None:
    """Collect the packages that an installed one needs with extras, itself included."""
    known = found.get(name)
    if known is not None and extras <= known:
        return
    found[name] = extras | (known or frozenset())
    for text in metadata.distribution(name).requires or ():
        needed = Requirement(text)
        marker = needed.marker
        if marker is None or any(marker.evaluate({"extra": x}) for x in found[name] | {""}):
            needs_of(canonicalize_name(needed.name), frozenset(needed.extras), found)


@pytest.mark.slow
def test_the_line_that_errors_name_needs_no_release(tmp_path: Path) -> None:
    """pip finds the extra of the package that is there, and asks no index for it."""
    line = install_line("plot")
    assert line.startswith("pip ")
    words = [sys.executable, "-m", *shlex.split(line), "--dry-run", "--no-index", "--no-deps"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout
