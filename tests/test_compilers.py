"""Tests that the C++ core builds without warnings and passes its tests with every compiler.

g++'s own build is in `test_cpp_package`, from the sources that a wheel holds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import ntk_alibi as na
from cpp_programs import STRICT, check_example, check_isolation, run
from repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]

#: Each instruction set takes half a minute. Sanitizers watch what runs, so they need this machine's
#: sets; threads share what all kernels share, so one will do.
RUNNING = f"-DNTK_ALIBI_ISAS={';'.join(na.info()['isas'])}"
PORTABLE = "-DNTK_ALIBI_ISAS=portable"
AARCH64 = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
WINDOWS = [
    *("-DCMAKE_SYSTEM_NAME=Windows", "-DCMAKE_SYSTEM_PROCESSOR=x86_64"),
    "-DCMAKE_EXE_LINKER_FLAGS=-static",
]

#: Compiler, CMake options, and the emulator that runs the result. g++ builds portable kernels for
#: Windows; `make windows-test` has clang's.
COMPILERS = {
    "g++ address, undefined": (
        "g++",
        ["-DNTK_ALIBI_SANITIZE=address,undefined", "-DCMAKE_BUILD_TYPE=Debug", RUNNING],
        [],
    ),
    "g++ thread": ("g++", ["-DNTK_ALIBI_SANITIZE=thread", PORTABLE], []),
    "g++ thread, own pool": (
        "g++",
        ["-DNTK_ALIBI_SANITIZE=thread", "-DNTK_ALIBI_OPENMP=OFF", PORTABLE],
        [],
    ),
    "g++, flags of a project around it": (
        "g++",
        [PORTABLE, "-DCMAKE_CXX_FLAGS=-march=native -ffast-math"],
        [],
    ),
    "clang++": ("clang++", [], []),
    "aarch64": (
        "aarch64-linux-gnu-g++",
        AARCH64,
        ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
    ),
    "windows": ("x86_64-w64-mingw32-g++-posix", WINDOWS, ["wine"]),
}

#: CMake options that are refused, with what the error says.
REFUSED = {
    "an instruction set that there is not": (
        ["-DNTK_ALIBI_ISAS=portable;sse9"],
        r"NTK_ALIBI_ISAS must name some of .*, got sse9",
    ),
    "Visual Studio's own compiler": (
        ["-DCMAKE_CXX_COMPILER_ID=MSVC", "-DCMAKE_CXX_COMPILER_ID_RUN=1"],
        r"needs g\+\+, clang\+\+ or clang-cl, got MSVC: .* -T ClangCL",
    ),
    "32 bits": (
        ["-DCMAKE_CXX_FLAGS=-m32", "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY"],
        "needs a 64-bit system, .* install a 64-bit Python",
    ),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_the_core_builds_and_passes_its_tests(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, options, emulator = COMPILERS[name]
    for program in (compiler, "cmake"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    run(
        *("cmake", "-S", ROOT, "-B", tmp_path, f"-DCMAKE_CXX_COMPILER={compiler}"),
        *("-DNTK_ALIBI_PYTHON=OFF", "-DNTK_ALIBI_TESTS=ON", *options, STRICT),
    )
    run("cmake", "--build", tmp_path, "--parallel", str(os.cpu_count()))
    if emulator and shutil.which(emulator[0]) is None:
        pytest.skip(f"it was built, but {emulator[0]} is not installed")
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "wine"))
    monkeypatch.setenv("WINEDEBUG", "-all")
    suffix = ".exe" if name == "windows" else ""
    output = run(*emulator, tmp_path / f"core_tests{suffix}")
    assert output.endswith("all tests passed\n")
    assert ("neon" if name == "aarch64" else "portable") in output
    if not emulator:
        check_isolation(tmp_path)
    if name == "g++ thread":
        options = ["-DCMAKE_CXX_FLAGS=-fsanitize=thread"]
    if name == "g++ thread" or emulator:
        _check_installed(tmp_path, compiler, options, emulator, suffix)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_built_is_refused(name: str, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    options, message = REFUSED[name]
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert re.search(message, " ".join(done.stderr.split()))


def _check_installed(
    build: Path, compiler: str, options: list[str], emulator: list[str], suffix: str
) -> None:
    """Check that the example of the installed package runs there and computes what Python does."""
    prefix = build / "prefix"
    run("cmake", "--install", build, "--prefix", prefix)
    assert [path.name for path in prefix.rglob("*.h")] == ["attention.h"]
    run(
        *("cmake", "-S", ROOT / "examples/cpp", "-B", build / "example"),
        *(f"-DCMAKE_CXX_COMPILER={compiler}", *options, f"-DCMAKE_PREFIX_PATH={prefix}"),
    )
    run("cmake", "--build", build / "example")
    # Sums of up to 601 products of float32, in another order; the outputs are below 1.
    check_example(run(*emulator, build / f"example/causal_attention{suffix}"), rel=1e-5, abs=1e-6)
