"""Entry point of `python -m ntk_alibi`: prints the folder of the CMake package."""

from __future__ import annotations

import argparse

from ntk_alibi import _installed
from ntk_alibi.cli import errors

parser = argparse.ArgumentParser(
    prog="python -m ntk_alibi",
    description="Show where the C++ library is; the command is ntk-alibi.",
    epilog="example:\n  cmake -S . -B build -Dntk_alibi_DIR=$(python -m ntk_alibi --cmake-dir)",
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument(
    "--cmake-dir",
    action="store_true",
    required=True,
    help="print the folder of ntk_alibiConfig.cmake, for CMake's ntk_alibi_DIR",
)
parser.parse_args()
with errors.sentences("python -m ntk_alibi"):
    print(_installed.cmake_dir())
