"""Loading of the compiled core, whose OpenMP library is the system's or torch's.

Wheels bring no OpenMP library: a second one beside torch's would have a second pool of threads, and
both would wait by spinning (docs/building.md).
"""

from __future__ import annotations

import ctypes
import re
from importlib import import_module, util
from pathlib import Path

#: Errors of the linkers of Linux and macOS, with the library that they do not find.
_MISSING = re.compile(r"(lib[\w.+-]+): cannot open shared object|Library not loaded: \S*/(lib\S+)")


def load() -> None:
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
        library = missing.group(1) or missing.group(2)
        if not _loaded_from_torch(library):
            raise ImportError(
                f"ntk_alibi needs the library {library}, which was not found: install OpenMP "
                "(libgomp1 on Debian and Ubuntu, libgomp on Fedora, libomp with brew) or torch, "
                "which brings it"
            ) from error
        import_module("ntk_alibi._core")


def _loaded_from_torch(library: str) -> bool:
    """Load the library of this name that torch brings; torch itself is not imported."""
    torch = util.find_spec("torch")
    for folder in (torch and torch.submodule_search_locations) or ():
        path = Path(folder) / "lib" / library
        if path.is_file():
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            return True
    return False


load()
