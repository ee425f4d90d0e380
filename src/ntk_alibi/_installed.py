"""What is installed: the core with its OpenMP library, optional packages, CMake's files.

Wheels contain no OpenMP library: beside torch's it would start a second pool of threads, and both
pools would spin while they wait. Those for Linux share torch's or the system's.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, util
from pathlib import Path

#: The error of Linux's linker for a missing library, with its name.
_MISSING = re.compile(r"(lib[\w.+-]+): cannot open shared object")

#: Optional packages, with the extra that installs them.
EXTRAS = {
    "ml_dtypes": "bf16",
    "torch": "torch",
    "transformers": "transformers",
    "matplotlib": "plot",
    "pandas": "eval",
    "gguf": "gguf",
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "export"),
    "vllm": "vllm",
}


def load_core() -> None:
    """Import the compiled core, with torch's OpenMP library if the system has none.

    Raises:
        ImportError: there is no OpenMP library, or the core cannot be imported for another reason.
    """
    try:
        import_module("ntk_alibi._core")
    except ImportError as error:
        missing = _MISSING.search(str(error))
        if missing is None:
            raise
        library = missing.group(1)
        if not _loaded_from_torch(library):
            raise ImportError(
                f"ntk_alibi needs the library {library}, which was not found: install OpenMP "
                "(libgomp1 on Debian and Ubuntu, libgomp on Fedora) or torch, which brings it"
            ) from error
        import_module("ntk_alibi._core")


def _loaded_from_torch(library: str) -> bool:
    """Load the library of this name from torch's folder, without importing torch."""
    torch = util.find_spec("torch")
    for folder in (torch and torch.submodule_search_locations) or ():
        path = Path(folder) / "lib" / library
        if path.is_file():
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            return True
    return False


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    from importlib import metadata  # a tenth of the import time of this package

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def install_line(extra: str) -> str:
    """Return the command that adds an extra to an environment that has this package.

    pip keeps the installed package, so the command works before a release, too. Documents address
    readers without the package: they install from a checkout until `release.py` changes that.
    """
    return f'pip install "ntk-alibi[{extra}]"'  # cmd.exe knows these quotes alone


@contextmanager
def needed_by(name: str, extra: str | None = None) -> Iterator[None]:
    """Turn a failing import in the block into an error with the extra to install for `name`.

    Without `extra` it is the extra of the missing package.
    """
    try:
        yield
    except ImportError as error:
        package = _missing(error)
        if package not in EXTRAS:
            raise
        message = f"{name} needs {package}: {install_line(extra or EXTRAS[package])}"
        raise ModuleNotFoundError(message, name=package) from error


def _missing(error: BaseException) -> str | None:
    """Return the package that was not found, even if another library replaced the error."""
    if isinstance(error, ModuleNotFoundError):
        return error.name
    return None if error.__cause__ is None else _missing(error.__cause__)


def cmake_dir() -> Path:
    """Return the folder of `ntk_alibiConfig.cmake`, for CMake's `ntk_alibi_DIR`.

    Raises:
        FileNotFoundError: this installation has no such folder.
    """
    core = import_module("ntk_alibi._core")
    folder = Path(str(core.__file__)).parent / "cmake"
    if not (folder / "ntk_alibiConfig.cmake").is_file():
        raise FileNotFoundError(
            f"the CMake package must be in {str(folder)!r}, beside the compiled core, got no such "
            "folder: install ntk-alibi with pip"
        )
    return folder


load_core()
