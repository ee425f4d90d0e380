"""Tests of the C++ library as other projects use it: find_package, the programs, their results."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

import ntk_alibi as na
from cpp_programs import STRICT, check_example, check_isolation, program_inputs, run
from ntk_alibi import _installed
from repository import ROOT

#: The program of docs/cpp.md, and what the page says that it prints.
PAGE, PRINTED = re.findall(
    r"```cpp\n(.*?)//> (.*?\n)```", (ROOT / "docs/cpp.md").read_text(), re.S
)[0]

#: A user's project: the example, the page's program, one that prints what tolerances change, the
#: core's tests.
PROJECT = f"""
cmake_minimum_required(VERSION 3.18)
project(programs LANGUAGES CXX)
find_package(ntk_alibi 0.1 REQUIRED)
foreach(source "{ROOT}/examples/cpp/causal_attention.cpp" "{ROOT}/tests/shared/skip_tolerance.cpp"
        "${{CMAKE_CURRENT_SOURCE_DIR}}/page.cpp")
  cmake_path(GET source STEM name)
  add_executable(${{name}} "${{source}}")
  target_link_libraries(${{name}} PRIVATE ntk_alibi::core)
endforeach()
find_package(Threads REQUIRED)
file(GLOB tests "{ROOT}/cpp/tests/*.cpp")
add_executable(core_tests ${{tests}})
target_include_directories(core_tests PRIVATE "${{ntk_alibi_DIR}}/source/cpp")
target_link_libraries(core_tests PRIVATE ntk_alibi::core Threads::Threads)
add_library(steepest STATIC steepest.cpp)
target_link_libraries(steepest PRIVATE ntk_alibi::core)
install(TARGETS steepest EXPORT steepest)
install(EXPORT steepest NAMESPACE steepest:: DESTINATION lib/cmake/steepest FILE targets.cmake)
install(FILES steepestConfig.cmake DESTINATION lib/cmake/steepest)
"""

#: A library of that project, which it installs for others, and a program of theirs.
LIBRARY = {
    "steepest.cpp": """
#include "ntk_alibi/attention.h"
double steepest_slope(int heads) { return ntk_alibi::alibi_slopes(heads)[0]; }
""",
    "steepestConfig.cmake": """
include(CMakeFindDependencyMacro)
find_dependency(ntk_alibi 0.1)
include("${CMAKE_CURRENT_LIST_DIR}/targets.cmake")
""",
}
USER = {
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.18)
project(user LANGUAGES CXX)
find_package(steepest REQUIRED)
add_executable(user user.cpp)
target_link_libraries(user PRIVATE steepest::steepest)
""",
    "user.cpp": """
#include <cstdio>
double steepest_slope(int heads);
int main() { std::printf("%.9g", steepest_slope(12)); }
""",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of programs that were built with the CMake package of the Python package.

    This is also the test that the core builds without warnings. `test_compilers` builds the example
    with the package of an installed library.
    """
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    try:
        package = _installed.cmake_dir()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for path in [package / "source/CMakeLists.txt", *(package / "source/cpp").rglob("*.*")]:
        here = ROOT / path.relative_to(package / "source")
        assert path.read_text() == here.read_text(), f"{path} is another one here: run `make test`"
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # of all workers, which take what the first one builds
    folder = place / "programs"
    with FileLock(place / "programs.lock"):
        if not (folder / "built").exists():
            _build(folder, package)
            (folder / "built").touch()
    return folder / "build"


def _build(folder: Path, package: Path) -> None:
    _write(folder, {"CMakeLists.txt": PROJECT, "page.cpp": PAGE, **LIBRARY})
    gnu = ("-DCMAKE_CXX_COMPILER=g++",) if shutil.which("g++") else ()
    options = f"-Dntk_alibi_DIR={package}", STRICT, *gnu
    run("cmake", "-S", folder, "-B", folder / "build", *options)
    run("cmake", "--build", folder / "build", "--parallel", str(os.cpu_count()))


def _write(folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)


@pytest.mark.slow
@pytest.mark.long
def test_the_core_of_a_wheel_passes_its_tests(programs: Path) -> None:
    output = run(programs / "core_tests")
    assert output.endswith("all tests passed\n")
    assert "portable" in output
    check_isolation(programs)


@pytest.mark.slow
@pytest.mark.long
def test_the_example_finds_the_package_and_computes_what_python_does(programs: Path) -> None:
    # The same code on the same machine; 9 digits are printed, and Python's values are float32.
    check_example(run(programs / "causal_attention"), rel=2.0**-22)


@pytest.mark.slow
@pytest.mark.long
def test_the_program_of_the_page_prints_what_it_says(programs: Path) -> None:
    assert run(programs / "page") == PRINTED


def test_python_prints_what_the_program_of_the_page_does() -> None:
    rows = np.arange(4, dtype=np.float32)[None, None, :, None]
    output = na.attention(rows, rows, rows, na.ALiBi(1, slopes=[0.5])).ravel()
    assert " ".join(f"{x:.4f}" for x in output) == PRINTED.strip()


@pytest.mark.slow
@pytest.mark.long
def test_the_environment_chooses_the_isa_of_a_program(programs: Path) -> None:
    for isa in ("", "portable", "mmx"):
        done = subprocess.run(
            [programs / "causal_attention"],
            env={**os.environ, "NTK_ALIBI_ISA": isa},
            capture_output=True,
            text=True,
        )
        assert done.returncode == (isa == "mmx")
    assert "NTK_ALIBI_ISA must be one of portable" in done.stderr
    assert done.stderr.endswith("on this machine, got 'mmx'\n")


@pytest.mark.slow
@pytest.mark.long
def test_a_library_that_links_the_core_is_installed_for_others(
    programs: Path, tmp_path: Path
) -> None:
    run("cmake", "--install", programs, "--prefix", tmp_path / "prefix")
    _write(tmp_path / "user", USER)
    build = tmp_path / "user/build"
    found = f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}"
    run("cmake", "-S", tmp_path / "user", "-B", build, found)
    run("cmake", "--build", build)
    assert np.float32(run(build / "user")) == na.alibi_slopes(12)[0]


@pytest.mark.slow
@pytest.mark.long
def test_skip_tolerance_means_what_it_does_in_python(programs: Path) -> None:
    tolerances = None, 0.0, 0.01, 0.5
    heads, keys = 4, 1500
    slopes = na.alibi_slopes(heads)
    biases = na.ALiBi(heads), na.ALiBi(heads, slopes=-slopes), None
    rows = run(
        programs / "skip_tolerance", *("none" if t is None else str(t) for t in tolerances)
    ).splitlines()
    got = np.array([row.split() for row in rows], np.float64)
    got = got.reshape(len(tolerances), len(biases), heads, -1)
    query, *inputs = (
        program_inputs(1, 70, heads),
        program_inputs(2, keys, heads),
        program_inputs(3, keys, heads),
    )
    for i, tolerance in enumerate(tolerances):
        for j, bias in enumerate(biases):
            wanted = na.attention(
                *(query, *inputs, bias), skip_tolerance=tolerance, return_logsumexp=True
            )[1][0]
            # The same code on the same machine, but Python rounds logsumexps to float32.
            np.testing.assert_allclose(got[i, j], wanted, rtol=2.0**-22)
    # A greater tolerance leaves out more mass, by far more than values are rounded to.
    mass = np.exp(got[:, 0] - got[0, 0]).min(axis=(1, 2))
    assert abs(1 - mass[1]) <= 2.0**-20
    assert 0.99 <= mass[2] < 1 - 2.0**-20
    assert 0.5 <= mass[3] < mass[2]
    # Negative slopes and no bias have no proof: all keys are read.
    np.testing.assert_array_equal(got[:, 1:], np.broadcast_to(got[:1, 1:], got[:, 1:].shape))


@pytest.mark.parametrize("standard", ["c++11", "c++14"])
def test_an_older_standard_is_named(standard: str, tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is installed")
    program = tmp_path / "program.cpp"
    program.write_text(PAGE)
    options = [f"-std={standard}", "-fsyntax-only", "-I", str(ROOT / "cpp/include")]
    done = subprocess.run([compiler, *options, str(program)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "ntk_alibi needs C++17" in done.stderr
    done = subprocess.run([compiler, "-std=c++17", *options[1:], str(program)])
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["ntk_alibi", "ntk_alibi.cli:main"])
def test_the_folder_of_the_cmake_package_is_printed_or_said_to_be_missing(command: str) -> None:
    module, _, function = command.partition(":")
    script = ["-c", f"import {module} as cli; cli.{function}()"] if function else ["-m", module]
    done = subprocess.run([sys.executable, *script, "--cmake-dir"], capture_output=True, text=True)
    if done.returncode == 0:
        assert (Path(done.stdout.strip()) / "ntk_alibiConfig.cmake").is_file()
    else:
        assert done.returncode == 2
        assert "the CMake package must be in" in done.stderr
        assert "Traceback" not in done.stderr
