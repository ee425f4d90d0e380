"""What the machine can do at most, measured beside what the kernels do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROUNDS = 20_000_000  # about 70 ms


@cache
def fma_probe(width: str = "native") -> Callable[[int], float]:
    """A function of the number of threads that measures float32 operations a second.

    Args:
        width: "native", or a value of g++'s -march such as "x86-64-v3" for AVX2.
    """
    source = Path(__file__).with_name("peak.cpp")
    library = Path(tempfile.mkdtemp()) / "peak.so"
    compiler = os.environ.get("CXX", "g++")
    flags = ["-O2", f"-march={width}", "-std=c++17", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).fma_peak
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_int, ctypes.c_long]
    return lambda threads: float(function(threads, ROUNDS))
