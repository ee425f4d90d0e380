"""Bias tensors against the reference and against transformers, on every instruction set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as transformers_builder

import ntk_alibi as na
from attention_checks import NUMPY as DTYPES
from attention_checks import each_isa, each_number_of_threads

#: Around the vector widths of 4, 8 and 16 lanes, and long enough for many vectors.
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 1023)

#: Slope and product are rounded once each.
RTOL = 2 * 2.0**-24

MASKS = {
    "full": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]],
    "left": [[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]],
    "holes": [[0, 1, 0, 1, 1, 0], [1, 0, 0, 1, 0, 1]],
    "empty row": [[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]],
}
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


@masks
@pytest.mark.parametrize("anchor", ["first", "last"])
@pytest.mark.parametrize("heads", [1, 3, 8, 40, 112])
def test_build_alibi_tensor_is_the_reference(isa: str, mask: list, anchor: Any, heads: int) -> None:
    ours = na.build_alibi_tensor(np.array(mask), heads, np.float32, na.NTK(3.0), anchor=anchor)
    slopes = na.reference.ntk_slopes(na.reference.alibi_slopes(heads), 3.0)
    theirs = na.reference.build_alibi_tensor(mask, slopes, anchor)
    np.testing.assert_allclose(ours, theirs, rtol=RTOL, atol=0)


@masks
@pytest.mark.parametrize("heads", [1, 8, 12, 40, 112])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
def test_build_alibi_tensor_is_that_of_transformers(
    mask: list, heads: int, dtype: torch.dtype
) -> None:
    ours = na.build_alibi_tensor(torch.tensor(mask), heads, dtype)
    theirs = transformers_builder(torch.tensor(mask), heads, dtype)
    assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
    # transformers' slopes are off by up to (P + 4) half ulps of float32 (test_slopes.py); a 16-bit
    # value may therefore fall on the other side of a rounding boundary.
    power = 2 ** int(np.log2(heads))
    ulp = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0
    torch.testing.assert_close(ours, theirs, rtol=(power + 4) * 2.0**-24 + ulp, atol=0.0)
    if heads in (1, 8):  # the base is a power of two: nothing to round
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_rounding_is_to_nearest_even(isa: str, name: str, length: int) -> None:
    bias = na.ALiBi(6, na.NTK(7.0), sides="symmetric")
    exact = bias.tensor(length, length)
    mask = np.ones((2, length), np.int64)
    with np.errstate(over="ignore"):
        assert (bias.tensor(length, length, DTYPES[name]) == exact.astype(DTYPES[name])).all()
        exact = na.build_alibi_tensor(mask, 6, np.float32, na.NTK(7.0))
        rounded = na.build_alibi_tensor(mask, 6, DTYPES[name], na.NTK(7.0))
        assert (rounded == exact.astype(DTYPES[name])).all()


#: Every float16 and bfloat16 rounding case: subnormals, ties, overflow, infinities.
HARD_SLOPES = np.array(
    [
        *(6e-8, 2.98e-8, 2.9802322e-8, 5.9604645e-8, 6.1e-5, 6.103515625e-5, 1e-40, 1.5e-45),
        *(65504.0, 65519.0, 65519.996, 65520.0, 3.4e38, 1.00390625, 1.01171875),
        *(np.inf, 0.0, -0.25),
    ],
    np.float32,
)


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_of_hard_numbers(isa: str, name: str) -> None:
    bias = na.ALiBi(len(HARD_SLOPES), slopes=HARD_SLOPES)
    with np.errstate(over="ignore"):
        expected = -HARD_SLOPES.astype(DTYPES[name])
    got = bias.tensor(1, 33, DTYPES[name])[0, :, 0, 31]
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("queries", [1, 3, 40])
def test_relative_bias_is_the_reference(isa: str, length: int, queries: int) -> None:
    slopes = na.reference.alibi_slopes(6)
    infinite = np.full(6, np.inf)
    left, right = slopes[::-1].astype(np.float32), np.array([0, np.inf, 1, 2, 3, -1], np.float32)
    half = na.reference.alibi_slopes(3)
    for bias, reference in [
        (na.ALiBi(6), na.reference.linear_bias(slopes, infinite, queries, length)),
        (na.ALiBi(6, sides="symmetric"), na.reference.symmetric_bias(slopes, queries, length)),
        (na.ALiBi(6, sides="halves"), na.reference.halves_bias(half, half, queries, length)),
        (
            na.ALiBi(5, sides="halves"),
            na.reference.halves_bias(half, na.reference.alibi_slopes(2), queries, length),
        ),
        (
            na.ALiBi(1, sides="halves"),
            na.reference.linear_bias([2.0**-8], [np.inf], queries, length),
        ),
        (
            na.ALiBi(6, sides="symmetric", exempt=2),
            na.reference.exempt_bias(na.reference.symmetric_bias(slopes, queries, length), 2),
        ),
        (
            na.ALiBi(6, slopes=(left, right), sides="two_slopes"),
            na.reference.linear_bias(left, right, queries, length),
        ),
    ]:
        ours = bias.tensor(queries, length)
        assert ours.shape == (1, bias.num_heads, queries, length)
        np.testing.assert_allclose(ours, reference, rtol=RTOL, atol=0)


def test_halves_of_own_slopes_mask_one_side_of_each_head() -> None:
    slopes = np.array([1.0, 2.0], np.float32)
    bias = na.ALiBi(2, slopes=slopes, sides="halves").tensor(2, 2)[0]
    assert bias.tolist() == [[[0, -np.inf], [-1, 0]], [[0, -2], [-np.inf, 0]]]


def test_distances_are_exact_far_away(isa: str) -> None:
    keys = 2**24 + 3
    row = na.ALiBi(1, slopes=np.ones(1, np.float32)).tensor(1, keys)[0, 0, 0]
    # Beyond 2^24 float32 holds every second integer, so distances round to nearest even.
    assert row[:3].tolist() == [-(2.0**24) - 2, -(2.0**24), -(2.0**24)]
    assert (np.diff(row[3:]) == 1).all()


def test_the_same_bits_for_any_number_of_threads() -> None:
    bias = na.ALiBi(7, na.NTK(3.0), sides="symmetric")
    mask = np.random.default_rng(0).integers(0, 2, (5, 20_000))
    expected = bias.tensor(301, 999), na.build_alibi_tensor(mask, 7, np.float16)
    for _ in each_number_of_threads(1, 2, 3, 7):
        got = bias.tensor(301, 999), na.build_alibi_tensor(mask, 7, np.float16)
        for a, b in zip(expected, got, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_tensors_too_large_for_the_cache_are_streamed_to_the_same_bits(
    isa: str, name: str, offset: int
) -> None:
    dtype = np.dtype(DTYPES[name])
    queries = 6000 // dtype.itemsize
    shape = (1, 3, queries, 4001)  # rows of odd length, more than 64 MiB
    memory = np.empty(np.prod(shape) + offset + 1, dtype)
    memory[-1] = memory[0] = 7
    out = memory[offset:-1].reshape(shape)
    bias = na.ALiBi(3, sides="symmetric")
    assert bias.tensor(queries, 4001, dtype, out=out) is out
    assert (out[:, :, ::499] == bias.tensor(queries, 4001)[:, :, ::499].astype(dtype)).all()
    assert memory[-1] == 7
    assert offset == 0 or memory[0] == 7


def test_out_is_filled_and_returned() -> None:
    mask = torch.ones((2, 5), dtype=torch.bool)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        out = torch.empty((6, 1, 5), dtype=dtype)
        assert na.build_alibi_tensor(mask, 3, dtype, out=out) is out
        assert torch.equal(out, na.build_alibi_tensor(mask, 3, dtype))
    out = torch.empty((1, 3, 4, 5), dtype=torch.bfloat16)
    assert na.ALiBi(3).tensor(4, 5, out=out) is out
    assert torch.equal(out, na.ALiBi(3).tensor(4, 5, torch.bfloat16))


@masks
def test_masks_of_any_dtype(mask: list) -> None:
    expected = na.build_alibi_tensor(np.array(mask), 4, np.float32)
    for dtype in (np.bool_, np.int8, np.uint8, np.float64, ml_dtypes.bfloat16):
        assert (na.build_alibi_tensor(np.array(mask, dtype), 4, np.float32) == expected).all()
    for torch_dtype in (torch.bool, torch.int32, torch.bfloat16, torch.float16):
        tensor = na.build_alibi_tensor(torch.tensor(mask).to(torch_dtype), 4, torch.float32)
        assert (tensor.numpy() == expected).all()


def test_nothing_in_nothing_out() -> None:
    assert na.build_alibi_tensor(np.ones((0, 5)), 4, np.float32).shape == (0, 1, 5)
    assert na.build_alibi_tensor(np.ones((3, 0)), 4, np.float32).shape == (12, 1, 0)
    assert na.build_alibi_tensor(torch.ones((0, 0)), 4, torch.bfloat16).shape == (0, 1, 0)
    assert na.ALiBi(4).tensor(0, 7).shape == (1, 4, 0, 7)
    assert na.ALiBi(4).tensor(7, 0).shape == (1, 4, 7, 0)
    assert na.ALiBi(4, na.DynamicNTK(train_length=2048)).tensor(2, 2, lengths=[]).shape == (
        0,
        4,
        2,
        2,
    )


def test_every_isa_gives_the_same_bits() -> None:
    bias, results = na.ALiBi(9, na.NTK(5.0), sides="symmetric"), set()
    for _ in each_isa():
        results.add(b"".join(bias.tensor(37, 91, d).tobytes() for d in DTYPES.values()))
    assert len(results) == 1


@pytest.mark.parametrize("like", [np.ones(1, np.float32), torch.ones(1)], ids=["array", "tensor"])
def test_slopes_may_be_lists_of_integers(like: Any) -> None:
    inputs = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8), np.float32)
    query, key, value = inputs if isinstance(like, np.ndarray) else torch.from_numpy(inputs)
    whole, floats = (na.ALiBi(2, slopes=slopes) for slopes in ([1, 0], [1.0, 0.0]))
    output = na.attention(query, key, value, whole)
    np.testing.assert_array_equal(output, na.attention(query, key, value, floats))
    np.testing.assert_array_equal(whole.tensor(3, 5), floats.tensor(3, 5))
