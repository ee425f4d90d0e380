"""Gradients of any call of attention equal the reference's on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ntk_alibi as na
from attention_calls import Call, calls
from attention_checks import distances, each_isa, each_number_of_threads
from gradient_checks import check_dense, check_gradients, check_linear, expected, run


def call_distances(call: Call) -> NDArray[np.float64]:
    """Return the distances of queries and keys, (1 or batch, 1, queries, keys)."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    k = call.options.get("key_positions", np.arange(keys))
    q = np.arange(keys - queries, keys)
    if "key_positions" in call.options:
        q = k[..., max(keys - queries, 0) :]
    return distances(call.options.get("query_positions", q), k)


@given(call=calls(), with_log=st.booleans())
@settings(max_examples=settings.default.max_examples)
def test_any_calls_gradients_are_the_references(call: Call, with_log: bool) -> None:
    arrays: list[Any] = [call.query, call.key, call.value]
    scale, tolerance = (call.options[name] for name in ("scale", "skip_tolerance"))
    what = None
    for _ in each_isa():
        result, do, dl = run(arrays, call.bias, call.options, with_log=with_log)
        what = what or expected(arrays, call.dense_bias, do, dl, scale, tolerance)
        check_gradients(what, result)
        if isinstance(call.bias, na.ALiBi):
            check_linear(what, result, call_distances(call))
        elif call.bias is not None:
            check_dense(what, result)
        hidden = np.broadcast_to(~call.seen.any(axis=(1, 2))[:, None, :], call.key.shape[:3])
        for gradient in (result.key, result.value):
            assert (gradient[hidden] == 0).all()


@given(call=calls(), threads=st.integers(2, 5))
@settings(max_examples=settings.default.max_examples // 2)
def test_the_same_bits_for_any_threads(call: Call, threads: int) -> None:
    arrays: list[Any] = [call.query, call.key, call.value]
    names = ("query", "key", "value", "left", "right", "dense")
    for _ in each_isa():
        one, other = (
            run(arrays, call.bias, call.options)[0] for _ in each_number_of_threads(1, threads)
        )
        for name in names:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
