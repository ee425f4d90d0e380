"""Tests that the C++ core builds without warnings and passes its tests with every compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cpp_programs import of_example, of_python
from repository import ROOT

AARCH64 = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]

#: Compiler, CMake options, and the emulator that runs the result.
COMPILERS = {
    "g++": ("g++", [], []),
    "g++ address, undefined": (
        "g++",
        ["-DNTK_ALIBI_SANITIZE=address,undefined", "-DCMAKE_BUILD_TYPE=Debug"],
        [],
    ),
    "g++ thread": ("g++", ["-DNTK_ALIBI_SANITIZE=thread"], []),
    "clang++": ("clang++", [], []),
    "aarch64": (
        "aarch64-linux-gnu-g++",
        AARCH64,
        ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
    ),
}

#: Prefixes of symbols that compilers emit, one for each symbol of ours.
MARKS = ("DW.ref.", "__odr_asan.")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILERS)
def test_the_core_builds_and_passes_its_tests(name: str, tmp_path: Path) -> None:
    compiler, options, emulator = COMPILERS[name]
    for program in (compiler, "cmake", *emulator[:1]):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    run(
        *("cmake", "-S", str(ROOT), "-B", str(tmp_path), f"-DCMAKE_CXX_COMPILER={compiler}"),
        *("-DNTK_ALIBI_PYTHON=OFF", "-DNTK_ALIBI_TESTS=ON", "-DCMAKE_CXX_FLAGS=-Werror", *options),
    )
    run("cmake", "--build", str(tmp_path), "--parallel", str(os.cpu_count()))
    output = run(*emulator, str(tmp_path / "core_tests"))
    assert output.endswith("all tests passed\n")
    assert ("neon" if name == "aarch64" else "portable") in output
    if not emulator:
        _check_isolation(tmp_path)
    if emulator or name == "g++":
        _check_example(tmp_path, compiler, options, emulator)


def _check_example(build: Path, compiler: str, options: list[str], emulator: list[str]) -> None:
    """Check that the example of the installed package runs there and computes what Python does."""
    prefix = build / "prefix"
    run("cmake", "--install", str(build), "--prefix", str(prefix))
    assert [path.name for path in prefix.rglob("*.h")] == ["attention.h"]
    run(
        *("cmake", "-S", str(ROOT / "examples/cpp"), "-B", str(build / "example")),
        *(f"-DCMAKE_CXX_COMPILER={compiler}", *options, f"-DCMAKE_PREFIX_PATH={prefix}"),
    )
    run("cmake", "--build", str(build / "example"))
    results = of_example(run(*emulator, str(build / "example/causal_attention")))
    wanted = of_python()
    assert results.keys() == wanted.keys()
    for place, numbers_of_python in wanted.items():
        # Sums of up to 601 products of float32, in another order; the outputs are below 1.
        assert results[place] == pytest.approx(numbers_of_python, rel=1e-5, abs=1e-6), place


def _check_isolation(build: Path) -> None:
    """Check that no kernel object defines a symbol outside its instruction set's namespace.

    Of several weak definitions the linker keeps one; if that is an inline function compiled for
    AVX-512, it crashes older machines.
    """
    objects = list(build.rglob("ntk_alibi_kernels_*/**/*.o"))
    assert len(objects) >= 6
    for path in objects:
        isa = re.search(r"ntk_alibi_kernels_(\w+)\.dir", str(path))
        assert isa is not None
        for line in run("nm", "-C", "--defined-only", str(path)).splitlines():
            kind, symbol = line.split(maxsplit=2)[1:]
            in_namespace = f"ntk_alibi::{isa.group(1)}::" in symbol
            assert in_namespace or kind in "rdbtn" or symbol.startswith(MARKS), f"{path}: {line}"
