"""The CMake package that the compiled core is installed with."""

from __future__ import annotations

from pathlib import Path

from ntk_alibi import _core


def cmake_dir() -> Path:
    """Return the folder of `ntk_alibiConfig.cmake`, for CMake's `ntk_alibi_DIR`.

    Raises:
        FileNotFoundError: this installation has none.
    """
    folder = Path(_core.__file__).parent / "cmake"
    if not (folder / "ntk_alibiConfig.cmake").is_file():
        raise FileNotFoundError(
            f"the CMake package must be in {str(folder)!r}, beside the compiled core, got no such "
            "folder: install ntk-alibi with pip"
        )
    return folder
