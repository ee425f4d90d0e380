"""Attention from several threads, in forked children and beside torch.

Tests that depend on the state of a process start a new one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ntk_alibi as na
from attention_checks import each_number_of_threads, inputs
from ntk_alibi.biases import BiasObject, KernelBias

#: Code of a new process: enough tiles for several threads, and few queries on parts of keys.
SETUP = """
import os, sys
{first}
import numpy as np, ntk_alibi as na
{second}
x = np.random.default_rng(0).standard_normal((3, 1, 4, 200, 32)).astype(np.float32)
y = np.random.default_rng(1).standard_normal((3, 1, 4, 9000, 8)).astype(np.float32)
def bits():
    tiles = na.attention(*x, na.ALiBi(4), return_logsumexp=True)
    parts = na.attention(y[0, :, :, -1:], *y[1:], na.ALiBi(4), return_logsumexp=True)
    tensor = na.ALiBi(8).tensor(512, 512)
    return b"".join(array.tobytes() for array in (*tiles, *parts, tensor))
"""
TORCH = "import torch; torch.ones(10**6).sum()"


def python(code: str, first: str = "", second: str = "", **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SETUP.format(first=first, second=second) + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def problems() -> list[Callable[[], Any]]:
    """Return calls of several kinds: tiles, parts of keys, masks; two of them on one array."""
    shared = inputs(1, 4, 4, 150, 150, 32)
    few = inputs(1, 4, 2, 1, 9000, 8)
    mask = np.random.default_rng(3).random((1, 150)) < 0.7
    bias = na.ALiBi(4)
    return [
        lambda: na.attention(*shared, bias, return_logsumexp=True),
        lambda: na.attention(*shared, bias, key_padding_mask=mask, return_logsumexp=True),
        lambda: na.attention(*few, bias, return_logsumexp=True),
        lambda: na.attention(*inputs(2, 3, 1, 40, 80, 17), causal=False, return_logsumexp=True),
    ]


def bits(result: Any) -> bytes:
    return b"".join(array.tobytes() for array in result)


def test_calls_at_once_give_the_bits_of_calls_in_turn(isa: str) -> None:
    calls = problems() * 8
    expected = [bits(call()) for call in calls]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda call: bits(call()), calls))
    assert results == expected


def test_the_number_of_threads_may_change_while_calls_run() -> None:
    calls = problems() * 15
    expected = [bits(call()) for call in calls]
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            for threads in (1, 3, 2, 0):
                na.set_num_threads(threads)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            results = list(pool.map(lambda call: bits(call()), calls))
    finally:
        done.set()
        changing.join()
        na.set_num_threads(0)
    assert results == expected


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads by /proc")
@pytest.mark.parametrize("threads", ["1", "3"])
def test_omp_num_threads_is_honoured(threads: str) -> None:
    code = """
before = len(os.listdir("/proc/self/task"))
bits()
print(1 + len(os.listdir("/proc/self/task")) - before, na.info()["threads"])
"""
    found = python(code, OMP_NUM_THREADS=threads, OPENBLAS_NUM_THREADS="1")
    assert found == f"{threads} {threads}"


FORK = """
import signal
child = os.fork() if hasattr(os, "fork") else None
if child == 0:
    signal.alarm(30)  # rather than wait for threads that are not there
    same = bits() == expected and na.info()["threads"] == 1
    try:
        na.set_num_threads(2)
    except RuntimeError as error:
        os._exit(0 if same and "fork" in str(error) else 1)
    os._exit(2)
assert child is None or os.waitpid(child, 0)[1] == 0
"""


def test_torch_may_come_first_and_a_forked_child_gives_the_same_bits_and_says_so() -> None:
    """A child has one thread."""
    code = """
import hashlib
na.set_num_threads(4)
expected = bits()
if "torch" in sys.modules:
    import torch
    tensors = na.attention(*map(torch.from_numpy, x), na.ALiBi(4)).numpy()
    assert tensors.tobytes() == na.attention(*x, na.ALiBi(4)).tobytes()
{fork}
assert bits() == expected and na.info()["threads"] == 4
print(hashlib.sha256(expected).hexdigest())
""".replace("{fork}", FORK)
    assert len({python(code), python(code, TORCH), python(code, second=TORCH)}) == 1


class MixedSides(BiasObject):
    """A bias whose right side is hidden from most queries."""

    def __init__(self, queries: int) -> None:
        right = np.full((1, 1, queries), np.inf, np.float32)
        right[:, :, ::160] = 0.3
        self.define(right=right, num_heads=1, sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        return KernelBias(left=np.full(self.right.shape, 0.5, np.float32), right=self.right)


def test_hidden_sides_beside_others_give_the_same_bits_for_any_number_of_threads(isa: str) -> None:
    query, key, value = inputs(1, 1, 1, 2048, 2048, 32)
    results = [
        na.attention(
            query, key, value, MixedSides(2048), causal=False, return_stats=True,
            skip_tolerance=2.0**-9,
        )
        for _ in each_number_of_threads(1, 16)
    ]  # fmt: skip
    (first, stats), (second, others) = results
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(stats.visited, others.visited)
