"""Rotated attention: gradients, heads one by one, autocast and compile."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs, random
from ntk_alibi.fused.gradients import attention_gradients
from rotary_scores import ROTARY

GATES = -np.random.default_rng(5).random((2, 4, 130))
BIASES = {
    "none": None,
    "exempt": na.ALiBi(4, exempt=3),
    "dynamic": na.ALiBi(4, na.DynamicNTK(train_length=64)),
    "first": na.BiALiBi([0.5, 1.0, 1.5, 2.0], 0.1, 0.2),
    "power": na.KerplePower([0.5, 0.2, 0.1, 0.05], 0.5),
    "sandwich": na.Sandwich(4, dimension=8),
    "buckets": na.T5(np.random.default_rng(6).random((4, 32)), bidirectional=False),
    "gates": na.ForgetGates(GATES),
}


@pytest.mark.parametrize("kind", [*BIASES, "dense", "dense per head", "slopes of queries"])
def test_heads_may_be_rotated_one_by_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {
        "dense": random(7, 90, 130),
        "dense per head": random(7, 2, 4, 1, 130),
        "slopes of queries": na.ALiBi(4, slopes=abs(random(8, 2, 4, 90)), sides="symmetric"),
    }
    arrays, bias = inputs(2, 4, 2, 90, 130, 16, dtype="bfloat16"), {**BIASES, **more}[kind]
    whole, alone = [], []
    for found, values in ((whole, 2**20), (alone, 1)):
        monkeypatch.setattr("ntk_alibi.fused.parts.ROTATED_AT_ONCE", values)
        *results, stats = na.attention(
            *arrays, bias, rotary=na.RoPE(16), log_n=8, return_logsumexp=True, return_stats=True
        )
        found += [*results, stats.visited, stats.visible]
    for mine, theirs in zip(alone, whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_all_keys_are_never_copied_at_once() -> None:
    query, key, value = inputs(1, 16, 16, 1, 8192, 64, dtype="bfloat16")
    rotary = na.RoPE(64)
    na.attention(query, key[:, :, :9], value[:, :, :9], rotary=rotary)
    tracemalloc.start()
    try:
        na.attention(query, key, value, rotary=rotary)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * key.size  # a float32 copy


@pytest.mark.parametrize("name", ROTARY)
def test_queries_beside_the_first_keys(name: str) -> None:
    query, key, value = inputs(1, 2, 2, 30, 50, 16)
    rotary = ROTARY[name](16)
    start = na.attention(query, key, value, na.ALiBi(2), rotary=rotary, align="start")
    same = na.attention(query, key[:, :, :30], value[:, :, :30], na.ALiBi(2), rotary=rotary)
    np.testing.assert_allclose(start, same, atol=1e-6)


@pytest.mark.parametrize("name", ROTARY)
def test_autocast_rounds_the_inputs_and_nothing_else(name: str) -> None:
    arrays = [torch.from_numpy(x) for x in inputs(1, 2, 2, 40, 40, 16)]
    at = torch.arange(40) + 1_000_000
    options = {"rotary": ROTARY[name](16), "query_positions": at, "key_positions": at, "log_n": 8}
    with torch.autocast("cpu", torch.bfloat16):
        mine = na.attention(*arrays, na.ALiBi(2), **options)
    rounded = na.attention(*(x.bfloat16().float() for x in arrays), na.ALiBi(2), **options)
    assert torch.equal(mine, rounded.bfloat16())


def test_objects_compare_hash_print_and_pickle() -> None:
    for rotary in (
        na.RoPE(8, layout="halves", factor=2.0),
        na.XPOS(8, 100.0, 64, 0.3, rotary_dim=4),
    ):
        assert pickle.loads(pickle.dumps(rotary)) == rotary == eval(repr(rotary), vars(na))
        assert len({rotary, na.RoPE(8), na.XPOS(8)}) == 3
    assert na.RoPE(8) == na.RoPE(8, 10000)
    assert na.RoPE(8).rotary_dim == 8


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
def test_traced_xpos_refuses_positions_that_it_cannot_see() -> None:
    def attend(x: torch.Tensor, at: torch.Tensor) -> Any:
        return na.attention(x, x, x, rotary=na.XPOS(8), query_positions=at)

    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="query_positions and key_positions must be None with XPOS"):
        compiled(torch.ones(1, 2, 5, 8), torch.arange(5))


@pytest.mark.parametrize("kind", BIASES)
def test_gradients_of_any_bias_are_summed_over_all_centres(kind: str) -> None:
    """They are compared with the gradients of the same bias as a dense array."""
    arrays, bias = inputs(2, 4, 2, 90, 130, 16), BIASES[kind]
    values = np.zeros((1, 4, 90, 130)) if bias is None else bias.tensor(90, 130)
    options: Any = {"rotary": ROTARY["XPOS of many centres"](16), "window": 70}
    results = na.attention(*arrays, bias, return_logsumexp=True, **options)
    given = (*arrays, *results, np.ones_like(results[0]), np.ones_like(results[1]))
    found, whole = (
        attention_gradients(*given, x, bias_gradient=True, **options)
        for x in (bias, np.maximum(values, -1e4))
    )
    for name in ("query", "key", "value"):
        np.testing.assert_allclose(
            *(getattr(x, name) for x in (found, whole)), rtol=1e-4, atol=1e-4
        )
    pairs = np.asarray(whole.dense, np.float64)
    d = np.arange(40, 130)[:, None] - np.arange(130)
    if found.table is not None:
        for i in range(found.table.shape[1]):
            own = pairs[..., d == found.table_begin + i].sum(axis=(0, 2))
            np.testing.assert_allclose(found.table[:, i], own, rtol=1e-4, atol=1e-4)
    if found.sums is not None:
        own = -pairs.sum(axis=2)
        own[:, :, 40:] += pairs.sum(axis=3)
        np.testing.assert_allclose(found.sums, own, rtol=1e-4, atol=1e-4)
    if found.left is not None:
        first = {"exempt": 3, "first": 1}.get(kind, 0)
        own = -(pairs * d)[..., first:].sum(axis=3)
        np.testing.assert_allclose(found.left, own, rtol=1e-4, atol=1e-3)
    if found.first is not None:
        np.testing.assert_allclose(found.first, -pairs[..., 0], rtol=1e-4, atol=1e-4)
