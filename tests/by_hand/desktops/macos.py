"""Build the library, the C++ tests and the Python module for macOS; nothing of it is run.

`make macos-build` runs this. It takes this machine's headers of CPython: on 64-bit systems they
differ in pyconfig.h alone, in nothing that the module asks.
"""

from __future__ import annotations

import os
import sysconfig

import pybind11
from desktops.zig import BUILD, options, run

from repository import ROOT

for processor, target in (("arm64", "aarch64-macos"), ("x86_64", "x86_64-macos")):
    folder = BUILD / f"macos-{processor}"
    given = {
        "NTK_ALIBI_TESTS": "ON",
        "NTK_ALIBI_PYTHON": "ON",
        "pybind11_DIR": pybind11.get_cmake_dir(),
        "Python_INCLUDE_DIR": sysconfig.get_path("include"),
        "PYTHON_MODULE_EXTENSION": ".darwin.so",
        "CMAKE_STRIP": "/bin/true",  # this machine's does not read the format
    }
    values = [*options(target, "Darwin", processor, folder / "bin"), *map("=".join, given.items())]
    run("cmake", "-S", ROOT, "-B", folder, *(f"-D{value}" for value in values))
    run("cmake", "--build", folder, "--parallel", str(os.cpu_count()))
    for name in ("core_tests", "_core.darwin.so"):
        magic = (folder / name).read_bytes()[:4]
        assert magic == b"\xcf\xfa\xed\xfe", f"{name} must be a Mach-O file, got {magic!r}"
print("built for macOS, arm64 and x86-64; not run")
