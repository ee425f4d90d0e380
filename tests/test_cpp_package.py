"""Tests of the C++ library as another project uses it: find_package, the example, its results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import ntk_alibi as na
from ntk_alibi import _cmake
from repository import ROOT

HEADS, TOKENS, ROOM, HEAD_DIM = 8, 600, 1024, 64


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(state: int, rows: int) -> NDArray[np.float32]:
    """Return the numbers of the example, (1, heads, rows, head_dim)."""
    drawn = np.empty(HEADS * rows * HEAD_DIM, np.float32)
    for i in range(drawn.size):
        state = (state * 1664525 + 1013904223) % 2**32
        drawn[i] = (state >> 8) / 2**23 - 1.0
    return drawn.reshape(1, HEADS, rows, HEAD_DIM)


def expected() -> dict[tuple[str, int], tuple[float, float]]:
    """Return logsumexp and first output of every head at the last token, by Python's attention."""
    key, value = numbers(2, ROOM), numbers(3, ROOM)
    results = {}
    for name, query, keys, tolerance in (
        ("prompt", numbers(1, TOKENS), TOKENS, 0.0),
        ("token", numbers(4, 1), TOKENS + 1, None),
    ):
        output, logsumexp = na.attention(
            *(query, key[:, :, :keys], value[:, :, :keys], na.ALiBi(HEADS)),
            skip_tolerance=tolerance,
            return_logsumexp=True,
        )
        for head in range(HEADS):
            results[name, head] = float(logsumexp[0, head, -1]), float(output[0, head, -1, 0])
    return results


def installed(folder: Path) -> Path:
    """Return the CMake package of an installed library."""
    run("cmake", "-S", ROOT, "-B", folder / "build")
    run("cmake", "--build", folder / "build", "--parallel", str(os.cpu_count()))
    run("cmake", "--install", folder / "build", "--prefix", folder / "prefix")
    (config,) = (folder / "prefix").rglob("ntk_alibiConfig.cmake")
    assert sorted(path.name for path in (folder / "prefix").rglob("*.h")) == ["attention.h"]
    return config.parent


def of_python(folder: Path) -> Path:
    """Return the CMake package of the Python package."""
    try:
        return _cmake.cmake_dir()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("package", [installed, of_python])
def test_the_example_finds_the_package_and_computes_what_python_does(
    package: object, tmp_path: Path
) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    assert callable(package)
    found = package(tmp_path)
    build = tmp_path / "example"
    run("cmake", "-S", ROOT / "examples/cpp", "-B", build, f"-Dntk_alibi_DIR={found}")
    run("cmake", "--build", build, "--parallel", str(os.cpu_count()))
    lines = [line.split() for line in run(build / "causal_attention").splitlines()]
    results = {(name, int(head)): (float(log), float(out)) for name, head, log, out in lines}
    wanted = expected()
    assert results.keys() == wanted.keys()
    for place, numbers_of_python in wanted.items():
        # The same code on the same machine; 9 digits are printed, and Python's numbers are float32.
        assert results[place] == pytest.approx(numbers_of_python, rel=2.0**-22), place


@pytest.mark.parametrize("standard", ["c++11", "c++14"])
def test_an_older_standard_is_named(standard: str, tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is installed")
    program = tmp_path / "program.cpp"
    program.write_text('#include "ntk_alibi/attention.h"\n')
    options = [f"-std={standard}", "-fsyntax-only", "-I", str(ROOT / "cpp/include")]
    done = subprocess.run([compiler, *options, str(program)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "ntk_alibi needs C++17" in done.stderr
    done = subprocess.run([compiler, "-std=c++17", *options[1:], str(program)])
    assert done.returncode == 0


def test_the_folder_of_the_cmake_package_is_printed_or_said_to_be_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ntk_alibi", "--cmake-dir"], capture_output=True, text=True
    )
    if done.returncode == 0:
        assert (Path(done.stdout.strip()) / "ntk_alibiConfig.cmake").is_file()
    else:
        assert done.returncode == 2
        assert "the CMake package must be in" in done.stderr
        assert "Traceback" not in done.stderr
