"""C++ programs that tests build: commands, their kernels' symbols, and the values they print."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import ntk_alibi as na

#: The option of CMake with which warnings are errors.
STRICT = "-DCMAKE_CXX_FLAGS=-Werror"

HEADS, TOKENS, ROOM, HEAD_DIM = 8, 600, 1024, 64

#: Prefixes of symbols that compilers emit, one for each symbol of ours.
MARKS = ("DW.ref.", "__odr_asan.")


def run(*command: str | Path) -> str:
    """Run a command that must succeed, and return what it prints."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_isolation(build: Path) -> None:
    """Check that no kernel object defines a symbol outside its instruction set's namespace.

    The linker keeps one of several weak definitions; an inline function compiled for AVX-512 would
    crash older machines.
    """
    objects = list(build.rglob("ntk_alibi_kernels_*/**/*.o"))
    assert len(objects) >= 6
    for path in objects:
        isa = re.search(r"ntk_alibi_kernels_(\w+)\.dir", str(path))
        assert isa is not None
        for line in run("nm", "-C", "--defined-only", path).splitlines():
            kind, symbol = line.split(maxsplit=2)[1:]
            in_namespace = f"ntk_alibi::{isa.group(1)}::" in symbol
            assert in_namespace or kind in "rdbtn" or symbol.startswith(MARKS), f"{path}: {line}"


def program_inputs(state: int, rows: int, heads: int = HEADS) -> NDArray[np.float32]:
    """Return the programs' inputs, (1, heads, rows, head_dim)."""
    drawn = np.empty(heads * rows * HEAD_DIM, np.float32)
    for i in range(drawn.size):
        state = (state * 1664525 + 1013904223) % 2**32
        drawn[i] = (state >> 8) / 2**23 - 1.0
    return drawn.reshape(1, heads, rows, HEAD_DIM)


def check_example(printed: str, **near: float) -> None:
    """Check the example's values by Python's attention, as near as `pytest.approx` is told.

    The example prints the logsumexp and the first output of every head at the last token.
    """
    lines = [line.split() for line in printed.splitlines()]
    results = {(name, int(head)): (float(log), float(out)) for name, head, log, out in lines}
    wanted = _of_python()
    assert results.keys() == wanted.keys()
    for place, numbers_of_python in wanted.items():
        assert results[place] == pytest.approx(numbers_of_python, **near), place


def _of_python() -> dict[tuple[str, int], tuple[float, float]]:
    key, value = program_inputs(2, ROOM), program_inputs(3, ROOM)
    results = {}
    for name, query, keys, tolerance in (
        ("prompt", program_inputs(1, TOKENS), TOKENS, 0.0),
        ("token", program_inputs(4, 1), TOKENS + 1, None),
    ):
        output, logsumexp = na.attention(
            *(query, key[:, :, :keys], value[:, :, :keys], na.ALiBi(HEADS)),
            skip_tolerance=tolerance,
            return_logsumexp=True,
        )
        for head in range(HEADS):
            results[name, head] = float(logsumexp[0, head, -1]), float(output[0, head, -1, 0])
    return results
