"""Random calls of attention on every instruction set: the reference, and relations of calls."""

from __future__ import annotations

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


def bounds(call: Call) -> Any:
    scale, tolerance = (call.options[name] for name in ("scale", "skip_tolerance"))
    return expected(call.query, call.key, call.value, call.dense_bias, scale, tolerance)


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


# --- keys hidden by dense values -----------------------------------------------------------------


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
