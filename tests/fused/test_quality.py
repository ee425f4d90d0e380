"""Errors and memory of attention at long lengths."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import ntk_alibi as na
from attention_checks import ROUNDING, random

LENGTH = 8192
#: Queries of the first tile, with few visible keys, and with many.
ROWS = np.array([0, 1, 63, 64, 100, 1000, 4095, 4096, 8000, 8190, 8191])


def sampled(dtype: str, dim: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return output and exact output at ROWS, and sum_j w_j |v_j|; two heads, steep and flat."""
    query, key, value = (random(i, 1, 2, LENGTH, dim, dtype=dtype) for i in range(3))
    slopes = np.float32([0.25, 2.0**-8])
    result = na.attention(query, key, value, na.ALiBi(2, slopes=slopes))[:, :, ROWS]
    wide = [x.astype(np.float64) for x in (query[:, :, ROWS], key, value)]
    distance = ROWS[:, None] - np.arange(LENGTH)[None, :]
    bias = np.where(distance < 0, -np.inf, -slopes[:, None, None] * np.abs(distance).astype(float))
    both = np.concatenate([wide[2], np.abs(wide[2])], axis=-1)
    means, _ = na.reference.attention(*wide[:2], both, bias[None])
    exact, size = np.split(means, 2, axis=-1)
    return result.astype(np.float64), exact, size


def test_float32_at_8192_tokens_errs_by_less_than_two_millionths(isa: str) -> None:
    result, exact, _ = sampled("float32")
    assert np.abs(result - exact).max() <= 2e-6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_errs_by_the_rounding_of_weights_and_results(isa: str, dtype: str) -> None:
    """Weights may be rounded to bfloat16, each by 2^-8 of its value; sums are float32, as above."""
    result, exact, size = sampled(dtype)
    unit = ROUNDING[dtype]
    weights = unit if dtype == "bfloat16" else 0.0
    summed = weights * size + 2e-6
    assert (np.abs(result - exact) <= summed + unit * (np.abs(exact) + summed)).all()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no module resource")
def test_memory_grows_with_the_length_not_with_its_square() -> None:
    """Compare the additions of a call to the peak memory of its process at two lengths.

    The matrix of all pairs would be 4 L^2 bytes a head: 256 MiB, then 1 GiB.
    """
    first, second = (added_bytes(length) for length in (8192, 16384))
    result = 4 * 16384 * 16
    assert second <= 8 * result + 8 * 2**20
    assert second - first <= 4 * result + 2 * 2**20


def added_bytes(length: int) -> int:
    code = f"""
import resource
import numpy as np, ntk_alibi as na
x = np.ones((3, 1, 1, {length}, 16), np.float32)
na.attention(*x[:, :, :, :200], na.ALiBi(1))  # threads and libraries
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
na.attention(*x, na.ALiBi(1), return_logsumexp=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return 1024 * int(done.stdout)
