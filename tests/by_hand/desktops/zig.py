"""clang for other systems, with their headers and libraries: zig's, from PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from repository import ROOT

BUILD = ROOT / "build"


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command that must succeed."""
    print("+", *command, flush=True)
    subprocess.run([*map(str, command)], check=True, cwd=cwd)


def options(target: str, system: str, processor: str, folder: Path) -> list[str]:
    """Return CMake's options to build for a target of zig.

    CMake wants a program for each tool, so the folder gets one for each of zig's.
    """
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(BUILD / "zig-cache"))
    folder.mkdir(parents=True, exist_ok=True)
    zig = f'exec "{sys.executable}" -m ziglang'
    # zig's linker ends with a segmentation fault if it is asked for a bundle.
    shared = 'for x; do shift; test "$x" = -bundle && x=-shared; set -- "$@" "$x"; done'
    scripts = {
        "c++": f'{shared}\n{zig} c++ -target {target} "$@"',
        "ar": f'{zig} ar "$@"',
        "ranlib": f'{zig} ranlib "$@"',
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    values = {
        "SYSTEM_NAME": system,
        "SYSTEM_PROCESSOR": processor,
        "CXX_COMPILER": folder / "c++",
        "AR": folder / "ar",
        "RANLIB": folder / "ranlib",
        "INSTALL_NAME_TOOL": "true",
        "CXX_FLAGS": "-Werror",
    }
    return [f"CMAKE_{name}={value}" for name, value in values.items()]
