"""Entry point of `python -m ntk_alibi`: the command line; --cmake-dir prints CMake's folder.

Example: cmake -S . -B build -Dntk_alibi_DIR=$(python -m ntk_alibi --cmake-dir)
"""

from __future__ import annotations

import sys

from ntk_alibi import _installed
from ntk_alibi.cli import errors, main

if sys.argv[1:] == ["--cmake-dir"]:
    with errors.sentences("python -m ntk_alibi"):
        print(_installed.cmake_dir())
else:
    main()
