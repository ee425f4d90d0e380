"""Calls that the fuzzer draws: the reference judges its oracle, and bits are always the same.

`tests/test_fuzz.py` compares the kernels with the oracle on every instruction set.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.bounds import Bounds
from fuzz.draw import Draw
from fuzz.drawn.calls import Call, Wishes, drawn_call
from fuzz.gradient_bounds import GradientBounds
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import (
    check,
    each_isa,
    each_number_of_threads,
    inputs,
    masked_bias,
    random,
)
from ntk_alibi.biases import BiasObject, KernelBias

SEEDS = st.integers(0, 2**32)


def drawn(seed: int, **wishes: Any) -> Call:
    return drawn_call(Draw("properties", seed), Wishes(wide=False, dropout=True, **wishes))


@given(seed=SEEDS)
def test_the_reference_sees_the_pairs_of_the_fuzzers_oracle(seed: int) -> None:
    pairs = drawn(seed, cheaper=20.0).places.pairs
    ids = {}
    if pairs.segment_ids is not None:
        ids = dict(zip(("query_segment_ids", "segment_ids"), pairs.segment_ids, strict=True))
    seen = na.reference.visible(pairs.queries, pairs.keys, pairs.real, **vars(pairs.rule), **ids)
    seen = seen[:, None] if pairs.mask is None else seen[:, None] & pairs.mask
    np.testing.assert_array_equal(np.broadcast_to(seen, pairs.seen.shape), pairs.seen)


@given(seed=SEEDS)
def test_the_fuzzers_oracle_is_the_reference(seed: int) -> None:
    """Rotations are in `tests/positions/test_rotary.py`; here their scores are part of the bias."""
    draw = Draw("oracle", seed)
    call = drawn(seed, poison=False, cheaper=3.0)
    bounds, (query, key, value) = Bounds(call), call.exact
    plain = call.rotation is None
    arrays = (call.factor * query if plain else 0.0 * query), key, value
    bias = bounds.bias if plain else bounds.bias + call.products.values
    dropped = {name: x for name, x in call.options.items() if name in ("dropout", "seed")}
    output, log = na.reference.attention(*arrays, bias, 1.0, **dropped)
    size = np.abs(value).max(initial=1.0)
    np.testing.assert_allclose(output, bounds.output.exact, rtol=1e-9, atol=1e-9 * size)
    np.testing.assert_allclose(log, bounds.logsumexp.exact, rtol=1e-9, atol=1e-9)
    do, dl = draw.normal(*output.shape), draw.normal(*log.shape)
    of = GradientBounds(bounds, do, dl)
    found = na.reference.attention_gradients(*arrays, bias, do, dl, 1.0, **dropped)
    of_scores = found[3] * np.ones_like(of.of_scores)
    size = np.abs(of_scores).max(initial=1.0)
    np.testing.assert_allclose(of_scores, of.of_scores, rtol=1e-9, atol=1e-9 * size)


@given(seed=SEEDS, threads=st.integers(2, 5))
def test_the_same_bits_for_any_threads_and_strides(seed: int, threads: int) -> None:
    call = drawn(seed)
    plain = replace(call, arrays=tuple(map(contiguous, call.arrays)))
    for _ in each_isa():
        results = [
            bits(x.attend(return_logsumexp=True))
            for _ in each_number_of_threads(1, threads)
            for x in (call, plain)
        ]
        assert results.count(results[0]) == 4


@given(seed=SEEDS, threads=st.integers(2, 5))
@settings(max_examples=settings.default.max_examples // 4)
def test_gradients_have_the_same_bits_for_any_threads(seed: int, threads: int) -> None:
    call = drawn(seed, learned=True, poison=False, cheaper=3.0)
    sources = [x.detach().requires_grad_() for x in call.arrays]
    learned = [x.tensor for x in call.bias.parameters]
    for _ in each_isa():
        one, other = (
            bits(torch.autograd.grad(
                replace(call, arrays=tuple(sources)).attend().float().square().sum(),
                [*sources, *learned], materialize_grads=True,
            ))
            for _ in each_number_of_threads(1, threads)
        )  # fmt: skip
        assert one == other


def contiguous(x: Any) -> Any:
    return x.contiguous() if torch.is_tensor(x) else np.array(x)


def bits(results: Any) -> list[bytes]:
    return [
        (x.detach().view(torch.uint8).numpy() if torch.is_tensor(x) else x).tobytes()
        for x in results
    ]


# --- regressions ----------------------------------------------------------------------------------


def test_a_key_that_numbers_hide_takes_part_in_nothing(isa: str) -> None:
    query, key, value = inputs(1, 2, 2, 70, 70, 16)
    bias = np.zeros((70, 70), np.float32)
    bias[:, 7] = -np.inf
    key[:, :, 7] = value[:, :, 7] = np.nan
    assert np.isfinite(na.attention(query, key, value, bias, causal=False)).all()


def packed(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values with a byte between any two, like a field of a structured array."""
    whole = np.zeros(values.shape, [("number", values.dtype), ("flag", np.uint8)])
    whole["number"] = values
    return whole["number"]


class SlopesOf(BiasObject):
    """Slopes on both sides, without any check."""

    def __init__(self, slopes: Any) -> None:
        self.define(slopes=slopes, num_heads=len(slopes), sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        side = self.slopes[None, :, None]
        return KernelBias(left=side, right=side)


def test_fields_of_structured_arrays_are_what_they_hold(isa: str) -> None:
    """Strides of slopes were truncated to multiples of four bytes."""
    arrays, positions = inputs(1, 2, 2, 9, 9, 16), np.arange(9, dtype=np.int32)
    dense, slopes = random(3, 9, 9), np.float32([0.5, 0.25])
    for make, values in ((np.asarray, dense), (SlopesOf, slopes)):
        result, expected = (
            na.attention(*map(f, arrays), make(f(values)), key_positions=f(positions))
            for f in (packed, np.copy)
        )
        np.testing.assert_array_equal(result, expected)
    none = arrays[0][:, :, :0]  # of which NumPy calls any strides aligned
    assert not na.attention(arrays[0], none, none, packed(dense)[:, :0], causal=False).any()


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
