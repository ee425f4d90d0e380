"""Values of biases over distance, of forget gates and of BiALiBi."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

import ntk_alibi as na
from attention_checks import inputs
from bias_cases import NUMBERS, R1, R2
from ntk_alibi.masks import Mask, Problem

#: Tables are float64 and rounded once; the error of a power or a cosine is far below.
RTOL, ATOL = 2.0**-24 * 1.001, 1e-12
MU = np.array([0.0, 3.0, -2.5])
GATES = -np.random.default_rng(1).random((2, 3, 90))


def constants() -> dict[str, tuple[Any, Callable[[NDArray[Any]], NDArray[Any]]]]:
    """Return biases of three heads, and their values (heads, *distances) by the reference."""
    reference = na.reference
    ratios = 8.0 * np.arange(1, 4) / 3

    def sandwich(d: NDArray[Any]) -> NDArray[Any]:
        products = reference.sandwich(d.reshape(-1), [0.0], 3, 128)[..., 0].reshape(3, *d.shape)
        return products - (64 / ratios).reshape(3, *[1] * d.ndim)

    def table(d: NDArray[Any]) -> NDArray[Any]:
        return NUMBERS[:, d.astype(int) + 100]

    return {
        "power": (na.KerplePower(R1, R2), lambda d: reference.kerple_power(d, R1, R2)),
        "log": (na.KerpleLog(R1, R2), lambda d: reference.kerple_log(d, R1, R2)),
        "BAM": (na.BAM(R1, R2, MU), lambda d: reference.bam(d, R1, R2, MU, 1e-5)),
        "BAM, relaxed": (na.BAM(R1, -R2), lambda d: reference.bam(d, R1, -R2, 0 * MU, 1e-5)),
        "Sandwich": (na.Sandwich(3), sandwich),
        "table": (na.DistanceTable(NUMBERS, -100), table),
        "function": (
            na.DistanceFunction(lambda d: -np.outer(R1, abs(d)), 3),
            lambda d: reference.kerple_power(d, R1, [1.0] * 3),
        ),
    }


@pytest.mark.parametrize("name", constants())
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 90), (7, 60), (60, 7), (0, 5), (5, 0)])
def test_dense_biases_are_the_reference(name: str, queries: int, keys: int) -> None:
    bias, reference = constants()[name]
    ours = bias.tensor(queries, keys)
    assert (ours.shape, ours.dtype) == ((1, 3, queries, keys), np.float32)
    theirs = reference(na.reference.distances(queries, keys))
    np.testing.assert_allclose(ours[0], theirs, rtol=RTOL, atol=ATOL)


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


def test_causal_biases_hide_what_is_ahead() -> None:
    for bias in (
        na.DistanceTable(NUMBERS),
        na.T5(NUMBERS, bidirectional=False),
        na.ForgetGates(GATES[..., :9]),
    ):
        ahead = np.arange(4, 9)[:, None] < np.arange(9)
        assert (np.isneginf(bias.tensor(5, 9)) == ahead).all()
        with pytest.raises(ValueError, match="causal must be True for a bias of causal sides"):
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


def test_sandwich_as_concatenation_at_given_positions() -> None:
    query, key, _ = inputs(1, 4, 2, 5, 9, 8)
    bias, q, k = na.Sandwich(4, 16), np.arange(4, 9), np.arange(9)
    plain = bias.concatenated(query, key)
    placed = bias.concatenated(query, key, query_positions=q, key_positions=k)
    for mine, theirs in zip(placed, plain, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    far = bias.concatenated(query, key, query_positions=q + 70, key_positions=k + 70)
    scores = [x @ np.repeat(y, 2, axis=1).swapaxes(2, 3) for x, y, _ in (far, plain)]
    np.testing.assert_allclose(*scores, atol=1e-5)


def test_bialibi_is_the_reference() -> None:
    first, left, right = np.random.default_rng(2).random((3, 4))
    bias = na.BiALiBi(first, left, right)
    for queries, keys in ((1, 1), (9, 9), (3, 20), (20, 3)):
        theirs = na.reference.bialibi_bias(first, left, right, queries, keys)
        np.testing.assert_allclose(bias.tensor(queries, keys), theirs, rtol=3 * RTOL, atol=ATOL)


def values() -> list[tuple[Any, Any]]:
    """Return pairs of equal biases."""
    array, tensor = R1.copy(), torch.tensor(R1)
    return [
        (na.KerplePower(array, R2), na.KerplePower(list(R1), tuple(R2))),
        (na.KerpleLog(tensor, R2), na.KerpleLog(tensor.clone(), R2)),
        (na.BAM(R1, 2.0), na.BAM(R1, [2.0] * 3, 0)),
        (na.Sandwich(3), na.Sandwich(3, 128, 3 / (8.0 * np.arange(1, 4)))),
        (na.T5(NUMBERS), na.T5(NUMBERS.copy(), True, 128)),
        (na.DistanceTable(NUMBERS, -3), na.DistanceTable(NUMBERS.tolist(), begin=-3)),
        (na.DistanceFunction(np.cos, 3), na.DistanceFunction(np.cos, num_heads=3)),
        (na.ForgetGates(GATES), na.ForgetGates(GATES.copy())),
        (na.BiALiBi(R1, R2, 0.5), na.BiALiBi(R1, R2, [0.5] * 3)),
        (na.ALiBi(3, exempt=1), na.ALiBi(3, exempt=np.int64(1))),
    ]


@pytest.mark.parametrize("pair", values(), ids=lambda pair: type(pair[0]).__name__)
def test_biases_are_values(pair: tuple[Any, Any]) -> None:
    bias, equal = pair
    assert bias.num_heads == 3
    others = [other for one in values() for other in one if type(other) is not type(bias)]
    assert all(bias != other for other in [*others, "bias"])
    for other in (equal, copy.deepcopy(bias), pickle.loads(pickle.dumps(bias))):
        assert other == bias
        assert hash(other) == hash(bias)
        assert repr(other) == repr(bias)
        np.testing.assert_array_equal(other.tensor(4, 90), bias.tensor(4, 90))
    assert type(bias).__name__ in repr(bias)
    with pytest.raises(AttributeError, match="cannot assign"):
        bias.num_heads = 4


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
    bias = na.KerpleLog(R1, R2)

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
    apart = na.DistanceTable(NUMBERS[:, :30])
    arrays = inputs(1, 3, 3, 20, 300, 4)
    na.attention(*arrays, apart, window=30)
    with pytest.raises(ValueError, match=r"cover the distances 0 to 30 .* got 30 from 0"):
        na.attention(*arrays, apart, window=31)


def test_constant_tables_are_kept() -> None:
    calls = []

    class Counted(na.KerplePower):
        def over(self, *arguments: Any) -> Any:
            calls.append(arguments)
            return super().over(*arguments)

    bias = Counted(R1, R2)
    for keys in (900, 901, 1000, 1020):
        table = bias.kernel_bias(Problem((1, 3, 1, keys))).table
        np.testing.assert_array_equal(table, super(Counted, bias).over(0, keys - 1).astype("f4"))
    assert len(calls) == 1


@pytest.mark.parametrize("name", [*constants(), "gates"])
def test_what_is_far_is_skipped_where_that_is_proven(name: str) -> None:
    query, key, value = inputs(1, 3, 3, 700, 700, 16)
    bias = na.ForgetGates(-np.ones((1, 3, 700))) if name == "gates" else constants()[name][0]
    if name == "table":
        bias = na.DistanceTable(-0.5 * abs(np.arange(-699.0, 700))[None].repeat(3, 0), -699)
    if name == "log":  # weights fall with the power r1 of the distance
        bias = na.KerpleLog([20.0] * 3, 1.0)
    causal = name == "gates"
    results = [
        na.attention(query, key, value, bias, causal=causal, skip_tolerance=t, return_stats=True)
        for t in (None, 0.0)
    ]
    assert (results[0][1].share == 1.0).all()
    steep = {"BAM, relaxed": False, "Sandwich": False}.get(name, True)
    assert bool((results[1][1].share[0] < 0.5).any()) == steep
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=0, atol=2e-6)
