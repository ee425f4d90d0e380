"""Instruction set and threads of the compiled core, and `info`."""

from __future__ import annotations

import os
from typing import Any

from ntk_alibi import _checks, _core, _installed

#: The state of GPU support, in `info` and docs/versions.md, until `make gpu-test` has run on a GPU.
GPU = "experimental: run on one H100, with torch 2.11"

OPTIONAL_PACKAGES = ("ml_dtypes", "torch", "transformers", "matplotlib", "pandas")


def start() -> None:
    """Choose the instruction set and register the fork handler, while the package is imported."""
    _core.active_isa()  # an unknown name in NTK_ALIBI_ISA is an error of the import
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_core.after_fork_in_child)


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads of the compiled core.

    The default is OpenMP's: OMP_NUM_THREADS, else one thread per processor. Results are identical
    to the bit for any number of threads.

    Args:
        num_threads: number of threads, 1 to 4096; 0 restores the default.

    Raises:
        TypeError, ValueError: num_threads is not an integer in that range.
        RuntimeError: more than one thread in a forked child, where OpenMP cannot start any.

    Example:
        >>> import ntk_alibi as na
        >>> na.set_num_threads(1)
        >>> na.info()["threads"]
        1
        >>> na.set_num_threads(0)
    """
    threads = _checks.integer("num_threads", num_threads, minimum=0, maximum=4096)
    if threads > 1 and _core.forked():
        raise RuntimeError(
            f"num_threads must be 1 in a forked process, got {threads}: OpenMP's threads do not "
            "survive fork(); start the process with the 'spawn' or 'forkserver' method to use "
            "several threads"
        )
    _core.set_num_threads(threads)


def info() -> dict[str, Any]:
    """Return versions, instruction sets and the number of threads.

    Returns:
        A dict with version; isa (the instruction set in use); isas (the instruction sets that this
        machine supports); threads; gpu (the state of GPU support, see docs/versions.md); packages
        (versions of ml_dtypes, torch, transformers, matplotlib and pandas, None for a missing one).

    Example:
        >>> import ntk_alibi as na
        >>> sorted(na.info())
        ['gpu', 'isa', 'isas', 'packages', 'threads', 'version']
    """
    return {
        "version": _core.__version__,
        "isa": _core.active_isa(),
        "isas": _core.available_isas(),
        "threads": _core.num_threads(),
        "gpu": GPU,
        "packages": {name: _installed.version_of(name) for name in OPTIONAL_PACKAGES},
    }
