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
    dense,
    each_number_of_threads,
    inputs,
    masked_bias,
    visible,
)

#: Queries and keys around the widths of vectors, steps of keys, and the block.
LENGTHS = [(1, 1), (2, 2), (2, 17), (3, 5), (4, 4), (9, 8), (16, 16), (17, 33), (40, 20), (64, 64)]

#: Head dimensions with and without a rest after whole vectors.
DIMS = [1, 20, 64, 256]


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_all_lengths(isa: str, queries: int, keys: int, dim: int, dtype: str) -> None:
    query, key, value = inputs(2, 4, 2, queries, keys, dim, dtype)
    biases: tuple[Any, ...] = (None, na.ALiBi(4), na.ALiBi(4, sides="symmetric"))
    for bias, causal in zip(biases, (True, True, False), strict=True):
        numbers = masked_bias(bias, queries, keys, causal=causal)
        result = na.attention(query, key, value, bias, causal=causal, return_logsumexp=True)
        check(query, key, value, numbers, result)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 3},
        {"window": 5, "sink": 2},
        {"causal_block": 6},
        {"causal": False, "window": 4, "sink": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_hidden_keys_take_no_part(isa: str, options: Any, poison: float) -> None:
    """Padding, and keys that the mask hides from all queries, hold NaN or infinity."""
    query, key, value = inputs(2, 2, 2, 7, 40, 24)
    mask = np.ones((2, 40), np.int64)
    mask[0, :9] = mask[1, 33:36] = 0
    q, k = np.arange(33, 40), np.arange(40)
    seen = visible(q, k, mask=mask, **options)
    for array in (key, value):
        array[~np.broadcast_to(seen.any(axis=2)[..., None], array.shape)] = poison
    bias = na.ALiBi(2, sides="symmetric")
    numbers = np.where(seen, dense(bias, q, k), -np.inf)
    result = na.attention(
        query, key, value, bias, key_padding_mask=mask, return_logsumexp=True, **options
    )
    check(query, key, value, numbers, result)


def test_results_beyond_float32_are_refused(isa: str) -> None:
    query, key, value = inputs(1, 1, 1, 5, 5, 16)
    query[0, 0, 4], key[0, 0, 3] = 1e30, 1e30
    with pytest.raises(ValueError, match="within float32's range"):
        na.attention(query, key, value, na.ALiBi(1))


@pytest.mark.parametrize(
    "bias",
    [
        na.T5(np.random.default_rng(1).random((4, 32)).astype(np.float32), bidirectional=False),
        na.KerpleLog(np.float32([1.0, 0.5, 0.2, 0.1]), np.float32([1.0, 2.0, 0.5, 0.1])),
        na.ForgetGates(np.random.default_rng(2).random((2, 4, 30)).astype(np.float32) - 1.0),
        np.random.default_rng(3).standard_normal((2, 4, 11, 30)).astype(np.float32),
    ],
    ids=lambda bias: type(bias).__name__,
)
def test_biases_of_other_forms(isa: str, bias: Any) -> None:
    query, key, value = inputs(2, 4, 4, 11, 30, 24)
    numbers = bias if isinstance(bias, np.ndarray) else bias.tensor(11, 30)
    seen = visible(np.arange(19, 30), np.arange(30))
    result = na.attention(query, key, value, bias, return_logsumexp=True)
    check(query, key, value, np.where(seen, np.float64(numbers), -np.inf), result)


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


@pytest.mark.parametrize(("convert", "most"), [(np.asarray, 18), (torch.from_numpy, 21)])
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
    assert len(set(seen)) <= 9
