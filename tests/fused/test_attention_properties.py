"""Random calls of attention on every instruction set: the reference, and relations of calls."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ntk_alibi as na
from attention_calls import Call, calls
from attention_checks import (
    UNIT,
    check,
    check_against,
    each_isa,
    each_number_of_threads,
    expected,
    inputs,
    masked_bias,
    random,
)
from ntk_alibi._backends import readable

#: Kinds of positions that include positions of the queries.
PLACED = ("unsorted", "repeats", "far", "queries only")


def bounds(call: Call) -> Any:
    scale, tolerance = (call.options[name] for name in ("scale", "skip_tolerance"))
    return expected(call.query, call.key, call.value, call.dense_bias, scale, tolerance)


def assert_near(first: Any, second: Any, *allowed: Any) -> None:
    """Check that two results differ by at most the sums of their bounds."""
    outputs, logs = zip(*(map(np.float64, result) for result in (first, second)), strict=True)
    assert (np.abs(outputs[0] - outputs[1]) <= sum(a.output_error for a in allowed)).all()
    none = np.isneginf(logs[0])
    assert (np.isneginf(logs[1]) == none).all()
    error = np.abs(logs[0][~none] - logs[1][~none])
    assert (error <= sum(a.logsumexp_error for a in allowed)[~none]).all()


@given(call=calls())
@settings(max_examples=2 * settings.default.max_examples)
def test_any_call_is_the_reference(call: Call) -> None:
    what = bounds(call)
    before = [x.tobytes() for x in (call.query, call.key, call.value)]
    for _ in each_isa():
        output, logsumexp, stats = call.run(return_stats=True)
        assert output.dtype == call.query.dtype
        assert output.flags.c_contiguous
        check_against(what, (output, logsumexp))
        assert (stats.visited <= stats.visible).all()
    assert [x.tobytes() for x in (call.query, call.key, call.value)] == before


@given(call=calls(), threads=st.integers(1, 5))
def test_the_same_bits_for_any_threads_and_strides(call: Call, threads: int) -> None:
    plain = replace(call, **{x: np.array(getattr(call, x)) for x in ("query", "key", "value")})
    for _ in each_isa():
        one, several = ((call.run(), plain.run()) for _ in each_number_of_threads(1, threads))
        for other in several:
            for mine, theirs in zip(one[0], other, strict=True):
                np.testing.assert_array_equal(mine, theirs)


@given(
    call=calls(dtypes=("float32", "float16"), layouts=("plain", "fused", "transposed", "spread"))
)
def test_tensors_of_any_strides_give_the_same_bits(call: Call) -> None:
    arrays = (call.query, call.key, call.value)
    tensors = dict(zip(("query", "key", "value"), map(torch.from_numpy, arrays), strict=True))
    results = replace(call, **tensors).run()
    for mine, theirs in zip(results, call.run(), strict=True):
        assert isinstance(mine, torch.Tensor)
        assert mine.is_contiguous()
        np.testing.assert_array_equal(mine.numpy(), theirs)


@given(call=calls(dtypes=("float32",), standing=PLACED), seed=st.integers(0, 99))
def test_the_order_of_keys_changes_nothing_beyond_rounding(call: Call, seed: int) -> None:
    keys = call.key.shape[2]
    order = np.random.default_rng(seed).permutation(keys)
    options = dict(call.options)
    options["key_positions"] = options.get("key_positions", np.arange(keys))[..., order]
    if "key_padding_mask" in options:
        options["key_padding_mask"] = options["key_padding_mask"][:, order]
    bias = call.bias
    if isinstance(bias, np.ndarray) and bias.ndim and bias.shape[-1] > 1:
        bias = bias[..., order]
    key, value = (x[:, :, order] for x in (call.key, call.value))
    other = replace(call, key=key, value=value, bias=bias, options=options)
    what = bounds(call)
    for _ in each_isa():
        assert_near(call.run(), other.run(), what, what)


@given(
    call=calls(dtypes=("float32",), standing=PLACED, counting=False),
    cuts=st.lists(st.integers(0, 150), max_size=2),
)
def test_parts_of_the_keys_merge_to_the_whole(call: Call, cuts: list[int]) -> None:
    keys = call.key.shape[2]
    bounded = sorted([0, *(min(cut, keys) for cut in cuts), keys])
    parts = [part_of(call, slice(*pair)) for pair in itertools.pairwise(bounded)]
    whole, each = bounds(call), [bounds(part) for part in parts]
    # Each part's errors times its share, then some roundings of the sum; merge is in float64.
    logs = np.where(np.isneginf(whole.logsumexp), 0.0, whole.logsumexp)
    shares = [np.exp(part.logsumexp - logs)[..., None] for part in each]
    allowed = sum(
        share * (part.output_error + 4 * part.logsumexp_error[..., None] * np.abs(part.output))
        for share, part in zip(shares, each, strict=True)
    )
    allowed = allowed * (1 + 4 * max(part.logsumexp_error.max(initial=0.0) for part in each))
    log_error = sum(part.logsumexp_error for part in each) + 2 * UNIT * np.abs(logs)
    joined = whole._replace(
        output_error=allowed + 2 * UNIT * np.abs(whole.output), logsumexp_error=log_error
    )
    for _ in each_isa():
        merged = na.merge(*zip(*(part.run() for part in parts), strict=True))
        check_against(joined, merged)


def part_of(call: Call, some: slice) -> Call:
    """Return the call over some of its keys."""
    options = dict(call.options)
    keys = np.arange(call.key.shape[2])
    options["key_positions"] = options.get("key_positions", keys)[..., some]
    if "key_padding_mask" in options:
        options["key_padding_mask"] = options["key_padding_mask"][:, some]
    bias = call.bias
    if isinstance(bias, np.ndarray) and bias.ndim and bias.shape[-1] > 1:
        bias = bias[..., some]
    key, value, dense_bias = (
        call.key[:, :, some],
        call.value[:, :, some],
        call.dense_bias[..., some],
    )
    return replace(
        call,
        key=key,
        value=value,
        seen=call.seen[..., some],
        dense_bias=dense_bias,
        bias=bias,
        options=options,
    )


@given(call=calls(dtypes=("float32",)), seed=st.integers(0, 99))
def test_a_constant_for_a_row_moves_only_its_logsumexp(call: Call, seed: int) -> None:
    # Multiples of 2^-10 below 2^13: their sums are exact in float32.
    values = np.round(1024 * np.where(np.isneginf(call.dense_bias), 0.0, call.dense_bias)) / 1024
    constant = np.random.default_rng(seed).integers(-40000, 40000, (*values.shape[:3], 1)) / 1024
    first, second = (
        replace(call, bias=bias.astype(np.float32), dense_bias=np.where(call.seen, bias, -np.inf))
        for bias in (values, values + constant)
    )
    allowed = bounds(first), bounds(second)
    for _ in each_isa():
        output, logsumexp = second.run()
        assert_near(first.run(), (output, logsumexp - constant[..., 0]), *allowed)


# --- keys hidden by dense values -----------------------------------------------------------------


def test_a_row_that_numbers_hide_is_empty(isa: str) -> None:
    query, key, value = inputs(1, 2, 2, 70, 70, 16)
    bias = np.zeros((70, 70), np.float32)
    bias[5] = -np.inf
    output, log = na.attention(query, key, value, bias, causal=False, return_logsumexp=True)
    assert np.isneginf(log[:, :, 5]).all()
    assert (output[:, :, 5] == 0.0).all()


def test_a_key_that_numbers_hide_takes_part_in_nothing(isa: str) -> None:
    query, key, value = inputs(1, 2, 2, 70, 70, 16)
    bias = np.zeros((70, 70), np.float32)
    bias[:, 7] = -np.inf
    key[:, :, 7] = value[:, :, 7] = np.nan
    assert np.isfinite(na.attention(query, key, value, bias, causal=False)).all()


# --- regressions ----------------------------------------------------------------------------------


def packed(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values with a byte between any two, like a field of a structured array."""
    whole = np.zeros(values.shape, [("number", values.dtype), ("flag", np.uint8)])
    whole["number"] = values
    return whole["number"]


def test_fields_of_structured_arrays_are_what_they_hold(isa: str) -> None:
    arrays = [*inputs(1, 2, 2, 9, 9, 16), random(3, 9, 9)]
    positions = np.arange(9, dtype=np.int32)
    expected = na.attention(*arrays)
    result = na.attention(*map(packed, arrays), key_positions=packed(positions))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("shift", [1, 2])
def test_what_the_core_gets_is_aligned(shift: int) -> None:
    values = random(0, 1, 2, 9, 16)
    odd = np.zeros(values.nbytes + shift, np.uint8)[shift:].view(np.float32)
    odd = odd.reshape(values.shape)
    odd[:] = values
    assert not odd.flags.aligned
    assert readable(odd).flags.aligned
    np.testing.assert_array_equal(readable(odd), values)
    with pytest.raises(ValueError, match="out must be contiguous, aligned"):
        na.ALiBi(2).tensor(9, 16, out=odd)


@pytest.mark.parametrize("queries", [1, 2, 40])
def test_a_sink_is_not_seen_on_a_side_that_is_hidden(isa: str, queries: int) -> None:
    query, key, value = inputs(1, 2, 2, queries, 150, 16)
    left = np.full((1, 2, queries), 0.1, np.float32)
    left[:, 0] = np.inf
    left[:, 1, ::2] = np.inf
    bias = na.ALiBi(2, slopes=(left, np.float32([0.1, 0.1])), sides="two_slopes")
    dense_bias = masked_bias(bias, queries, 150, window=200, sink=3)
    result = na.attention(query, key, value, bias, window=200, sink=3, return_logsumexp=True)
    check(query, key, value, dense_bias, result)
