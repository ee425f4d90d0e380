"""Values of biases over distance, of forget gates and of BiALiBi."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

import ntk_alibi as na
from attention_checks import R1, R2, ROUNDING, UNIT, inputs
from ntk_alibi.biases.distance import DistanceBias
from ntk_alibi.masks import Mask, Problem

#: Prefix sums are float64 and rounded once.
RTOL, ATOL = 2.0**-24 * 1.001, 1e-12
VALUES = np.random.default_rng(0).standard_normal((3, 200))
GATES = -np.random.default_rng(1).random((2, 3, 90))

#: Biases of three heads, and whether keys far away are proven not to matter.
SKIPPED: dict[str, tuple[Any, bool]] = {
    "power": (na.KerplePower(R1, R2), True),
    "log": (na.KerpleLog([20.0] * 3, 1.0), True),  # weights fall with the power r1 of the distance
    "BAM": (na.BAM(R1, R2, [0.0, 3.0, -2.5]), True),
    "BAM, relaxed": (na.BAM(R1, -R2), False),
    "Sandwich": (na.Sandwich(3), False),
    "table": (
        na.DistanceTable(-0.5 * abs(np.arange(-699.0, 700))[None].repeat(3, 0), -699), True
    ),
    "function": (na.DistanceFunction(lambda d: -np.outer(R1, abs(d)), 3), True),
    "gates": (na.ForgetGates(-np.ones((1, 3, 700))), True),
}  # fmt: skip


def test_dense_biases_of_any_dtype_and_framework() -> None:
    bias = na.KerpleLog(R1, R2)
    whole = bias.tensor(5, 9)
    for dtype in (ml_dtypes.bfloat16, np.float16, torch.bfloat16, torch.float16):
        ours = bias.tensor(5, 9, dtype)
        assert isinstance(ours, torch.Tensor) == isinstance(dtype, torch.dtype)
        wide = np.asarray(ours.double() if isinstance(ours, torch.Tensor) else ours, np.float64)
        rounding = 2.0**-8 if "bfloat16" in str(dtype) else 2.0**-11
        np.testing.assert_allclose(wide, whole, rtol=rounding)
    out = torch.empty((1, 3, 5, 9))
    assert bias.tensor(5, 9, out=out) is out
    assert (out.numpy() == whole).all()
    assert isinstance(na.KerpleLog(torch.ones(3), R2).tensor(2, 2), torch.Tensor)


class Own(DistanceBias):
    """A bias with an attribute that may change, although biases are frozen."""

    def __init__(self, slopes: Any) -> None:
        self.define(slopes=slopes, num_heads=len(slopes), sides="symmetric")

    @property
    def parameters(self) -> tuple[Any, ...]:
        return ()

    def over(self, first: int, last: int, like: Any = None) -> Any:
        return -np.asarray(self.slopes)[:, None] * abs(np.arange(first, last + 1.0))


@pytest.mark.parametrize("slopes", [[1.0, 2.0], np.array([1.0, 2.0])])
def test_a_table_is_that_of_a_bias_as_it_is_now(slopes: Any) -> None:
    bias, arrays = Own(slopes), inputs(1, 2, 2, 5, 9, 4)
    na.attention(*arrays, bias)
    bias.slopes[0] = 0.25
    expected = na.attention(*arrays, Own([0.25, 2.0]))
    np.testing.assert_array_equal(na.attention(*arrays, bias), expected)


def test_causal_biases_hide_what_is_ahead() -> None:
    for bias in (
        na.DistanceTable(VALUES),
        na.T5(VALUES, bidirectional=False),
        na.ForgetGates(GATES[..., :9]),
    ):
        ahead = np.arange(4, 9)[:, None] < np.arange(9)
        assert (np.isneginf(bias.tensor(5, 9)) == ahead).all()
        with pytest.raises(ValueError, match="bias must cover both sides"):
            na.attention(*inputs(2, 3, 3, 9, 9, 4), bias, causal=False)


def test_forget_gates_are_the_reference() -> None:
    ours = na.ForgetGates(GATES).tensor(20, 90)
    np.testing.assert_allclose(ours, na.reference.forget_gates(GATES, 20), rtol=RTOL, atol=ATOL)


def test_what_stands_at_padding_does_not_count() -> None:
    arrays = inputs(2, 3, 3, 90, 90, 8)
    mask = np.arange(90) >= np.array([[0], [30]])
    poisoned = np.where(mask[:, None], GATES, np.nan)
    output = na.attention(*arrays, na.ForgetGates(poisoned), key_padding_mask=mask)
    alone = na.attention(*(x[1:, :, 30:] for x in arrays), na.ForgetGates(GATES[1:, :, 30:]))
    np.testing.assert_allclose(output[1:, :, 30:], alone, rtol=0, atol=2e-6)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("buckets", [4, 7, 32, 50, 64])
@pytest.mark.parametrize("most", [40, 128, 129, 1000])
def test_t5_has_the_buckets_of_transformers(bidirectional: bool, buckets: int, most: int) -> None:
    distance = np.arange(-3000, 3001)
    theirs = T5Attention._relative_position_bucket(
        -torch.from_numpy(distance), bidirectional, buckets, most
    )
    bias = na.T5(np.arange(float(buckets))[None], bidirectional, most)
    np.testing.assert_array_equal(bias.over(-3000, 3000)[0], theirs.numpy())
    traced = bias.over(-3000, 3000, torch.empty(0))
    np.testing.assert_array_equal(traced[0].numpy(), theirs.numpy())


def test_t5_of_a_model_of_transformers() -> None:
    config = T5Config(d_model=32, d_kv=8, num_heads=4, num_layers=1)
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    with torch.no_grad():
        theirs = attention.compute_bias(60, 60)
        ours = na.T5(attention.relative_attention_bias.weight.T).tensor(60, 60)
    assert torch.equal(ours, theirs)


def test_sandwich_as_concatenation_is_the_table() -> None:
    query, key, value = (torch.from_numpy(x) for x in inputs(2, 4, 2, 50, 70, 16))
    for bias in (na.Sandwich(4), na.Sandwich(4, 32, [0.1, 1.0, 2.0, 0.3])):
        for scale in (None, 0.5):
            longer = bias.concatenated(query.double(), key.double(), scale=scale)
            scores = longer[2] * longer[0] @ longer[1].repeat_interleave(2, 1).transpose(2, 3)
            plain = query.double() @ key.double().repeat_interleave(2, 1).transpose(2, 3)
            added = (scores - longer[2] * plain).numpy()
            constant = np.asarray(bias.lambdas)[:, None, None] * bias.dimension / 2
            wanted = bias.over(-49, 69)[:, 49 + 20 + np.arange(50)[:, None] - np.arange(70)]
            np.testing.assert_allclose(
                added, np.broadcast_to(wanted + constant, added.shape), atol=1e-10
            )
            wide = torch.cat([value.double(), torch.zeros(2, 2, 70, bias.dimension)], -1)
            joined = na.attention(longer[0], longer[1], wide, scale=longer[2])[..., :16]
            wide_inputs = (query.double(), key.double(), value.double())
            table = na.attention(*wide_inputs, bias, scale=scale)
            torch.testing.assert_close(table, joined, rtol=0, atol=1e-10)
            fused = na.attention(query, key, value, bias, scale=scale)
            torch.testing.assert_close(fused.double(), joined, rtol=0, atol=4e-6)
    papers = na.reference.sandwich(np.arange(20, 70), np.arange(70), 4)
    dense = na.Sandwich(4).tensor(50, 70)[0]
    offset = 64 * 4 / (8.0 * np.arange(1, 5))
    np.testing.assert_allclose(dense + offset[:, None, None], papers, rtol=0, atol=4e-6)


def test_bialibi_is_the_reference() -> None:
    first, left, right = np.random.default_rng(2).random((3, 4))
    bias = na.BiALiBi(first, left, right)
    for queries, keys in ((1, 1), (9, 9), (3, 20), (20, 3)):
        theirs = na.reference.bialibi_bias(first, left, right, queries, keys)
        np.testing.assert_allclose(bias.tensor(queries, keys), theirs, rtol=3 * RTOL, atol=ATOL)


def test_lists_and_defaults_are_the_numbers_that_they_stand_for() -> None:
    for bias, same in (
        (na.KerplePower(R1, R2), na.KerplePower(list(R1), tuple(R2))),
        (na.BAM(R1, 2.0), na.BAM(R1, [2.0] * 3, 0)),
        (na.Sandwich(3), na.Sandwich(3, 128, 3 / (8.0 * np.arange(1, 4)))),
        (na.T5(VALUES), na.T5(VALUES.copy(), True, 128)),
        (na.DistanceTable(VALUES, -3), na.DistanceTable(VALUES.tolist(), begin=-3)),
        (na.DistanceFunction(np.cos, 3), na.DistanceFunction(np.cos, num_heads=3)),
        (na.BiALiBi(R1, R2, 0.5), na.BiALiBi(R1, R2, [0.5] * 3)),
        (na.ALiBi(3, exempt=1), na.ALiBi(3, exempt=np.int64(1))),
    ):
        assert bias == same


def test_parameters_are_ours() -> None:
    r1 = R1.copy()
    bias = na.KerplePower(r1, R2)
    before = bias.tensor(3, 9)
    r1[:] = 7.0
    assert (bias.tensor(3, 9) == before).all()
    with pytest.raises(ValueError, match="read-only"):
        bias.r1[0] = 7.0
    assert bias != na.KerplePower(r1, R2)


def test_tables_are_as_long_as_what_is_seen() -> None:
    bias = na.KerpleLog(*map(torch.tensor, (R1, R2)))  # kept tables are longer

    def length(
        query_positions: Any = None, key_positions: Any = None, align: str = "end", **mask: Any
    ) -> tuple[int, int]:
        given = Mask.checked(**mask), None, query_positions, key_positions, align
        table = bias.kernel_bias(Problem.checked((1, 3, 20, 1000), *given))
        return table.table_begin, table.table.shape[1]

    assert length() == (0, 1000)
    assert length(causal=False) == (-19, 1019)
    assert length(causal=False, window=30) == (-19, 49)
    assert length(window=30) == (0, 30)
    assert length(causal_block=64) == (0, 128)
    assert length(window=30, sink=1) == (0, 1000)
    assert length(causal=False, align="start") == (-999, 1019)
    positions = np.arange(1000, dtype=np.int32)[None]
    assert length(query_positions=positions[:, :20], key_positions=positions) == (0, 20)
    apart = na.DistanceTable(VALUES[:, :30])
    arrays = inputs(1, 3, 3, 20, 300, 4)
    na.attention(*arrays, apart, window=30)
    with pytest.raises(ValueError, match=r"cover the distances 0 to 30 .* got 30 from 0"):
        na.attention(*arrays, apart, window=31)


@pytest.mark.parametrize("name", SKIPPED)
def test_what_is_far_is_skipped_where_that_is_proven(name: str) -> None:
    query, key, value = inputs(1, 3, 3, 700, 700, 16)
    bias, steep = SKIPPED[name]
    results = [
        na.attention(
            query, key, value, bias, causal=name == "gates", skip_tolerance=t, return_stats=True
        )
        for t in (None, 0.0)
    ]
    assert (results[0][1].share == 1.0).all()
    assert bool((results[1][1].share[0] < 0.5).any()) == steep
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [True, False])
def test_entries_of_a_table_hide_keys_of_single_blocks(isa: str, causal: bool, dtype: str) -> None:
    """The other blocks read runs of entries, from the first entry of the table to its last."""
    query, key, value = inputs(1, 2, 2, 200, 200, 32, dtype)
    table = np.random.default_rng(0).standard_normal((2, 399)).astype(np.float32)
    table[:, [60, 260]], table[:, 150], table[:, 330] = -np.inf, np.finfo(np.float32).min, -2.5e38
    distance = np.arange(200)[:, None] - np.arange(200)
    exact = np.where(causal & (distance < 0), -np.inf, table[:, distance + 199])
    bias = na.DistanceTable(table, -199)
    got, logsumexp = na.attention(
        query, key, value, bias, causal=causal, skip_tolerance=None, return_logsumexp=True
    )
    wide = [x.astype(np.float64) for x in (query, key, value)]
    output, log_sum = na.reference.attention(*wide, exact)
    # Scores are sums of 34 terms; weights and outputs are rounded to the dtype.
    of_scores = 34 * UNIT * np.abs(wide[0]).sum(-1).max() * np.abs(wide[1]).max() / 32**0.5
    np.testing.assert_allclose(logsumexp, log_sum, rtol=0, atol=of_scores)
    rounding = (of_scores + 2 * ROUNDING[dtype]) * np.abs(wide[2]).max()
    np.testing.assert_allclose(got.astype(np.float64), output, rtol=0, atol=rounding)
