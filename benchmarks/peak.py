"""Peak speed of the machine: arithmetic and memory reads, measured by `peak.cpp`."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import ntk_alibi as na

ROUNDS = 20_000_000  # about 70 ms
READ_BYTES, READ_PASSES = 2**29, 5

Probe = Callable[[int], float]


def fma_probe(width: str | None = None) -> Probe:
    """Return a function from a number of threads to measured float32 operations per second.

    The function returns 0 where the processor has no fused multiply-add or `peak.cpp` has no probe.

    Args:
        width: "native", or a value of g++'s -march such as "x86-64-v3" for AVX2; by default the one
            for the instruction set in use.
    """
    function = _function(width or _width(), "fma_peak", [ctypes.c_int, ctypes.c_long])
    return lambda threads: float(function(threads, ROUNDS))


def bf16_dot_probe(width: str | None = None) -> Probe:
    """Return a probe as `fma_probe`, of bfloat16 dot products that accumulate in float32."""
    function = _function(width or _width(), "bf16_dot_peak", [ctypes.c_int, ctypes.c_long])
    return lambda threads: float(function(threads, ROUNDS))


def bf16_matrix_probe() -> Probe:
    """Return a probe as `fma_probe`, of products by AMX's matrix registers.

    They take sixteen cycles each, where a round of the other probes takes six to twelve.
    """
    function = _function("native", "bf16_matrix_peak", [ctypes.c_int, ctypes.c_long])
    return lambda threads: float(function(threads, ROUNDS // 8))


def read_probe() -> Probe:
    """Return a function from a number of threads to measured bytes read from memory per second."""
    types = [ctypes.c_int, ctypes.c_long, ctypes.c_int]
    function = _function(_width(), "read_peak", types)
    return lambda threads: float(function(threads, READ_BYTES, READ_PASSES))


#: The value of g++'s -march with the registers of each instruction set.
WIDTHS = {
    "portable": "native",
    "avx2": "x86-64-v3",
    "avx512": "native",
    "avx512_bf16": "native",
    "amx": "native",
    "neon": "native",
}


def _width() -> str:
    return WIDTHS[na.info()["isa"]]


@cache
def _library(width: str) -> ctypes.CDLL:
    source = Path(__file__).with_name("peak.cpp")
    compiler = os.environ.get("CXX", "g++")
    flags = ["-O3", f"-march={width}", "-std=c++17", "-shared", "-fPIC", "-pthread"]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "peak.so"
        subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))


def _function(width: str, name: str, types: Sequence[type]) -> Callable[..., float]:
    function = getattr(_library(width), name)
    function.restype = ctypes.c_double
    function.argtypes = types
    return function  # type: ignore[no-any-return]
