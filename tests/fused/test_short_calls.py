"""Calls with at most one block of keys, which have a kernel of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import (
    NUMPY,
    check,
    each_number_of_threads,
    inputs,
    masked_bias,
)

#: Queries and keys around the widths of vectors, steps of keys, and the block.
LENGTHS = [(1, 1), (2, 2), (2, 17), (3, 5), (4, 4), (8, 9), (16, 16), (17, 33), (20, 40), (64, 64)]

#: Head dimensions with and without a rest after whole vectors.
DIMS = [1, 20, 64, 256]


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_all_lengths(isa: str, queries: int, keys: int, dim: int, dtype: str) -> None:
    query, key, value = inputs(2, 4, 2, queries, keys, dim, dtype)
    biases: tuple[Any, ...] = (None, na.ALiBi(4), na.ALiBi(4, sides="symmetric"))
    for bias, causal in zip(biases, (True, True, False), strict=True):
        values = masked_bias(bias, queries, keys, causal=causal)
        result = na.attention(query, key, value, bias, causal=causal, return_logsumexp=True)
        check(query, key, value, values, result)


@pytest.mark.parametrize("tolerance", [None, 0.0, 0.5])
def test_a_single_block_is_always_read(isa: str, tolerance: float | None) -> None:
    query, key, value = inputs(1, 3, 3, 12, 50, 16)
    _, stats = na.attention(
        query, key, value, na.ALiBi(3), skip_tolerance=tolerance, return_stats=True
    )
    assert (stats.visited == stats.visible).all()
    assert stats.visible.min() >= 1


@pytest.mark.parametrize("length", [1, 2, 16, 60])
def test_tensors_give_the_bits_of_arrays(length: int) -> None:
    """Any number of threads does, too: work of a few microseconds gets one."""
    arrays = inputs(1, 16, 16, length, length, 64)
    tensors = [torch.from_numpy(x) for x in arrays]
    expected = na.attention(*arrays, na.ALiBi(16))
    for _ in each_number_of_threads(1, 2, 3):
        np.testing.assert_array_equal(na.attention(*tensors, na.ALiBi(16)), expected)


@pytest.mark.parametrize(("convert", "most"), [(np.asarray, 9), (torch.from_numpy, 11)])
def test_a_repeated_call_makes_few_python_calls(convert: Any, most: int) -> None:
    """A generated token costs about one call for each layer, and Python most of its time."""
    tensors = [convert(x) for x in inputs(1, 16, 16, 1, 1, 64)]
    bias, package = na.ALiBi(16), str(Path(na.__file__).parent)
    seen: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            seen.append(frame.f_code.co_filename)

    for _ in range(2):
        na.attention(*tensors, bias)
    sys.setprofile(note)
    try:
        na.attention(*tensors, bias)
    finally:
        sys.setprofile(None)
    assert len(seen) <= most
    assert len(set(seen)) <= 10
