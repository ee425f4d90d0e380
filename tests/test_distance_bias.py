"""Biases over distance, forget gates, LittleBird's and exempt tokens."""

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
from attention_checks import UNIT, inputs
from ntk_alibi.attention_gradients import attention_gradients
from ntk_alibi.distance_bias import DistanceBias
from ntk_alibi.kernel_bias import Problem
from ntk_alibi.torch import fused_attention, learned_bias

#: Tables are float64 and rounded once; a power's or a cosine's own error is far below.
RTOL, ATOL = 2.0**-24 * 1.001, 1e-12

R1, R2 = np.array([0.3, 1.5, 0.01]), np.array([1.9, 0.4, 1.0])
MU = np.array([0.0, 3.0, -2.5])
NUMBERS = np.random.default_rng(0).standard_normal((3, 200))
GATES = -np.random.default_rng(1).random((2, 3, 90))


def constants() -> dict[str, tuple[Any, Callable[[NDArray[Any]], NDArray[Any]]]]:
    """Biases of three heads, and their values (heads, *distances) by the reference."""
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


def test_bialibi_is_the_reference() -> None:
    first, left, right = np.random.default_rng(2).random((3, 4))
    bias = na.BiALiBi(first, left, right)
    for queries, keys in ((1, 1), (9, 9), (3, 20), (20, 3)):
        theirs = na.reference.bialibi_bias(first, left, right, queries, keys)
        np.testing.assert_allclose(bias.tensor(queries, keys), theirs, rtol=3 * RTOL, atol=ATOL)


def values() -> list[tuple[Any, Any]]:
    """Pairs of equal biases."""
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

    def length(**options: Any) -> tuple[int, int]:
        table = bias.kernel_bias(Problem((1, 3, 20, 1000), **options))
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


# Gradients of parameters, against torch's in float64 by a bias of all pairs
# --------------------------------------------------------------------------------------------------

Written = Callable[..., torch.Tensor]


def learned() -> dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], Written]]:
    """How a bias is made of parameters > 0, their shapes, and the bias of distances (Q, K)."""

    def column(x: torch.Tensor) -> torch.Tensor:
        return x[:, None, None]

    def gated(d: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        between = torch.zeros(*gates.shape[:2], 70, 90, dtype=gates.dtype)
        for i in range(70):
            for j in range(20 + i + 1):
                between[:, :, i, j] = -gates[:, :, j + 1 : 20 + i + 1].sum(-1)
        return between

    def waves(d: torch.Tensor, lambdas: torch.Tensor) -> torch.Tensor:
        k = torch.arange(8, dtype=torch.float64)
        return column(lambdas) * ((d[..., None] / 10000 ** (k / 8)).cos().sum(-1) - 8)

    def little(d: torch.Tensor, first: Any, left: Any, right: Any) -> torch.Tensor:
        linear = torch.where(d > 0, -column(left) * d, column(right) * d)
        i, j = torch.arange(20, 90)[:, None], torch.arange(90)
        edge = (i == 0) | (j == 0)
        return torch.where(d == 0, 0.0, torch.where(edge, -column(first), linear))

    def cls(d: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        i, j = torch.arange(20, 90)[:, None], torch.arange(90)
        return torch.where((i < 22) | (j < 22), 0.0, -column(slopes) * d.abs())

    return {
        "power": (
            na.KerplePower,
            [(4,), (4,)],
            lambda d, a, b: -column(a) * d.abs() ** column(b),
        ),
        "log": (
            na.KerpleLog,
            [(4,), (4,)],
            lambda d, a, b: -column(a) * (1 + column(b) * d.abs()).log(),
        ),
        "BAM": (
            na.BAM,
            [(4,), (4,), (4,)],
            lambda d, a, b, c: -(((column(a) * (d - column(c))).abs() + 1e-5) ** column(b)),
        ),
        "Sandwich": (lambda x: na.Sandwich(4, 16, x), [(4,)], waves),
        "T5": (
            na.T5,
            [(4, 32)],
            lambda d, x: x[:, T5Attention._relative_position_bucket(-d.long())],
        ),
        "table": (
            lambda x: na.DistanceTable(x, -80),
            [(4, 200)],
            lambda d, x: x[:, d.long() + 80],
        ),
        "function": (
            lambda x: na.DistanceFunction(
                lambda d: -x[:, None] * torch.from_numpy(d).cosh().log(), 4
            ),
            [(4,)],
            lambda d, x: -column(x) * d.cosh().log(),
        ),
        "gates": (lambda x: na.ForgetGates(-x), [(2, 4, 90)], gated),
        "gates of all rows": (lambda x: na.ForgetGates(-x), [(1, 4, 90)], gated),
        "BiALiBi": (na.BiALiBi, [(4,), (4,), (4,)], little),
        "exempt": (lambda x: na.ALiBi(4, slopes=x, sides="symmetric", exempt=22), [(4,)], cls),
    }


def results(output: torch.Tensor, log: torch.Tensor, sources: list[Any]) -> list[torch.Tensor]:
    weights = torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype)
    loss = (output * weights).sum() + log.sin().sum()
    return [output, log, *torch.autograd.grad(loss, sources)]


@pytest.mark.parametrize("name", learned())
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_of_parameters(name: str, causal: bool) -> None:
    make, shapes, written = learned()[name]
    if name.startswith("gates") and not causal:
        pytest.skip("a causal bias")
    generator = torch.Generator().manual_seed(5)
    parameters = [0.1 + torch.rand(s, generator=generator) for s in shapes]
    arrays = [torch.from_numpy(x) for x in inputs(2, 4, 2, 70, 90, 16)]
    d = torch.arange(20, 90)[:, None].double() - torch.arange(90)
    mine = [x.clone().requires_grad_() for x in (*arrays, *parameters)]
    ours = results(
        *na.attention(*mine[:3], make(*mine[3:]), causal=causal, return_logsumexp=True), mine
    )
    wide = [x.double().requires_grad_() for x in (*arrays, *parameters)]
    key, value = (x.repeat_interleave(2, 1) for x in wide[1:3])
    scores = wide[0] @ key.transpose(2, 3) / 4 + written(d, *wide[3:])
    if causal:
        scores = scores.masked_fill(d < 0, -torch.inf)
    theirs = results(scores.softmax(-1) @ value, scores.logsumexp(-1), wide)
    chunked = results(
        *na.attention(*wide[:3], make(*wide[3:]), causal=causal, return_logsumexp=True), wide
    )
    for a, b, c in zip(ours, theirs, chunked, strict=True):
        size = float(b.detach().abs().max())
        assert (a.double() - b).abs().max() <= 2e-5 * size + 1e-6
        assert (c - b).abs().max() <= 1e-11 * size + 1e-12


@pytest.mark.parametrize("name", ["power", "T5", "gates", "BiALiBi", "exempt"])
def test_compiled_mapped_and_cast(name: str) -> None:
    make, shapes, _ = learned()[name]
    parameters = [torch.rand(s).add(0.1).requires_grad_() for s in shapes]
    arrays = [torch.from_numpy(x).requires_grad_() for x in inputs(2, 4, 2, 90, 90, 16)]

    def loss(arrays: list[Any], parameters: list[Any]) -> torch.Tensor:
        output: torch.Tensor = na.attention(*arrays, make(*parameters), window=60)
        return output.square().sum()

    sources = [*arrays, *parameters]
    plain = torch.autograd.grad(loss(arrays, parameters), sources, allow_unused=True)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    traced = torch.autograd.grad(compiled(arrays, parameters), sources, allow_unused=True)
    for a, b in zip(plain, traced, strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        stacked = [torch.stack([x, 2 * x]) for x in arrays]
        mapped = torch.vmap(lambda *x: na.attention(*x, make(*parameters)))(*stacked)
        second = na.attention(*(2 * x for x in arrays), make(*parameters))
        torch.testing.assert_close(mapped[1], second)
    with torch.autocast("cpu", torch.bfloat16):
        output = na.attention(*arrays, make(*parameters))
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert parameters[0].grad is not None


@pytest.mark.parametrize("name", ["table", "gates", "BiALiBi"])
def test_operator_registrations(name: str) -> None:
    make, shapes, _ = learned()[name]
    parameters = [torch.rand(s).add(0.1).requires_grad_() for s in shapes]
    query, key, value = (torch.from_numpy(x).requires_grad_() for x in inputs(2, 4, 4, 90, 90, 4))
    options = na.fused_attention.Options()
    form = fused_attention._kernel_bias(make(*parameters), query, (2, 4, 90, 90), options)
    tensors = (getattr(form, name) for name in fused_attention.BIAS_TENSORS)
    rule = (form.table_begin, form.exempt, True, None, None, 0, 0.3, 0.0)
    arguments = (query, key, value, *tensors, None, None, None, *rule)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(fused_attention._attention, arguments, test_utils=checks)


def test_constant_biases_are_traced() -> None:
    arrays = [torch.from_numpy(x) for x in inputs(1, 3, 3, 50, 50, 8)]
    for bias in (na.KerplePower(R1, R2), na.Sandwich(3, 8), na.DistanceTable(NUMBERS, -100)):
        compiled = torch.compile(na.attention, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*arrays, bias), na.attention(*arrays, bias))


def test_other_devices_take_torchs_own_operations() -> None:
    meta = [torch.from_numpy(x).to("meta") for x in inputs(2, 4, 2, 90, 90, 8)]
    for name, (make, shapes, _) in learned().items():
        if name == "function":  # which is called with numbers
            continue
        for device in ("cpu", "meta"):
            bias = make(*(torch.ones(s, device=device) for s in shapes))
            assert na.attention(*meta, bias).device.type == "meta"


def test_gradients_of_numpy_arrays() -> None:
    arrays = inputs(1, 3, 3, 40, 60, 8)
    first, left, right = np.random.default_rng(2).random((3, 3))
    for bias in (na.KerplePower(R1, R2), na.BiALiBi(first, left, right)):
        results = na.attention(*arrays, bias, causal=False, return_logsumexp=True)
        do, dl = (np.random.default_rng(9).standard_normal(x.shape) for x in results)
        gradients = attention_gradients(
            *arrays, *results, do.astype(np.float32), dl.astype(np.float32), bias,
            bias_gradient=True, causal=False,
        )  # fmt: skip
        *_, ds = na.reference.attention_gradients(*arrays, bias.tensor(40, 60), do, dl)
        tolerance = 1e-4 * np.abs(ds).sum(axis=(2, 3)).max()
        if isinstance(bias, DistanceBias):
            assert gradients.table is not None
            index = np.arange(20, 60)[:, None] - np.arange(60)
            for d in (-39, -3, 0, 17, 59):
                mine = gradients.table[:, d - gradients.table_begin]
                assert np.abs(mine - ds[0, :, index == d].sum(axis=0)).max() < tolerance
        else:
            assert gradients.first is not None
            mine = gradients.first.sum(axis=2)
            assert np.abs(mine + ds[:, :, :, 0].sum(axis=2)).max() < tolerance


def test_merge_has_gradients() -> None:
    arrays = [torch.from_numpy(x).requires_grad_() for x in inputs(1, 3, 3, 20, 40, 8)]
    query, key, value = arrays
    bias = na.KerpleLog(R1, R2)
    masks = [torch.arange(40)[None] < 13, torch.arange(40)[None] >= 13]
    parts = [
        na.attention(query, key, value, bias, key_padding_mask=m, return_logsumexp=True)
        for m in masks
    ]
    joined = results(*na.merge(*zip(*parts, strict=True)), arrays)
    whole = results(*na.attention(query, key, value, bias, return_logsumexp=True), arrays)
    for a, b in zip(joined, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


# Alignment
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5), (6, 6), (70, 100)])
def test_alignments_of_cross_attention(queries: int, keys: int) -> None:
    arrays = inputs(1, 2, 2, queries, keys, 8)
    d = np.arange(queries)[:, None] - np.arange(keys)
    for bias, numbers in (
        (na.ALiBi(2, sides="symmetric"), -na.alibi_slopes(2)[:, None, None] * abs(d)),
        (na.KerpleLog([1.0, 2.0], 0.5), na.reference.kerple_log(d, [1.0, 2.0], [0.5, 0.5])),
    ):
        start = na.attention(*arrays, bias, causal=False, align="start")
        theirs, _ = na.reference.attention(*arrays, numbers)
        np.testing.assert_allclose(start, theirs, rtol=0, atol=2e-6)
        tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
        torch.testing.assert_close(
            na.attention(*tensors, bias, causal=False, align="start").detach().numpy(), start,
            rtol=0, atol=0,
        )  # fmt: skip
    positions = 3 * np.arange(keys)
    if queries <= keys:
        given = na.attention(
            *arrays, causal=True, query_positions=positions[:queries], key_positions=positions
        )
        start = na.attention(*arrays, causal=True, key_positions=positions, align="start")
        assert (given == start).all()


# Modules
# --------------------------------------------------------------------------------------------------

MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "ALiBi": lambda: learned_bias.LearnedALiBi(4, causal=False),
    "power": lambda: learned_bias.LearnedKerplePower(4),
    "log": lambda: learned_bias.LearnedKerpleLog(4),
    "BAM": lambda: learned_bias.LearnedBAM(4, learn_mu=True),
    "T5": lambda: learned_bias.LearnedT5(4, bidirectional=True),
    "BiALiBi": lambda: learned_bias.LearnedBiALiBi(4),
    "gates": lambda: learned_bias.LearnedForgetGates(16, 4),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_learn(name: str) -> None:
    torch.manual_seed(0)
    position = MODULES[name]()
    attend = na.AlibiAttention(4, 16, bias=position, causal=name == "gates")
    x, target = torch.randn(2, 3, 30, 16)
    optimizer = torch.optim.SGD(position.parameters(), lr=0.5)
    before = [p.detach().clone() for p in position.parameters()]
    losses = []
    for _ in range(5):
        loss = (attend(x, x, x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    for old, new in zip(before, position.parameters(), strict=True):
        assert new.grad is not None
        assert (new != old).any()


@pytest.mark.parametrize("name", ["power", "log", "BAM"])
def test_learned_parameters_stay_in_range(name: str) -> None:
    position: Any = MODULES[name]()
    for number in (-200.0, 200.0):
        with torch.no_grad():
            for parameter in position.parameters():
                parameter.fill_(number if name != "BAM" else number / 10)
        position()  # which checks
    assert {p.dtype for p in position.bfloat16().parameters()} == {torch.float32}


def test_first_draws_are_those_of_the_authors() -> None:
    generator = torch.Generator().manual_seed(0)
    power = learned_bias.LearnedKerplePower(2000, generator=generator)()
    log = learned_bias.LearnedKerpleLog(2000, generator=generator)()
    for numbers, most in ((power.r1, 1.0), (power.r2, 2.0), (log.r1, 2.0), (log.r2, 1.0)):
        assert 0.0 < numbers.min() < 0.02 * most
        assert 0.98 * most < numbers.max() < most
        assert abs(numbers.mean() - most / 2) < 0.03 * most
    with torch.no_grad():
        first = learned_bias.LearnedBAM(8)().over(0, 50)
    alike = na.KerplePower(na.alibi_slopes(8), 1.0).over(0, 50)
    np.testing.assert_allclose(first, alike, rtol=1e-6, atol=2e-5)  # epsilon is 1e-5


# Bad input
# --------------------------------------------------------------------------------------------------

SMALL = inputs(1, 2, 2, 4, 6, 4)


def call(bias: Any, **options: Any) -> Any:
    return na.attention(*SMALL, bias, **options)


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: na.KerplePower([0.0], [1.0]), ValueError, "r1 must be finite and > 0, got 0.0"),
    (lambda: na.KerplePower([-1.0], [1.0]), ValueError, "r1 must be finite and > 0, got -1.0"),
    (lambda: na.KerplePower([1.0], [2.5]), ValueError, "r2 must be .* and <= 2, got 2.5"),
    (lambda: na.KerplePower([1.0], 0.0), ValueError, "r2 must be .* > 0 and <= 2, got 0.0"),
    (lambda: na.KerplePower([np.nan], 1.0), ValueError, "r1 must be finite and > 0, got nan"),
    (lambda: na.KerplePower(1.0, [1.0]), ValueError, r"r1 must have shape \(heads,\), got \(\)"),
    (lambda: na.KerplePower([1.0], [1.0, 1.0]), ValueError, "r2 must have 1 heads, got 2"),
    (lambda: na.KerplePower(["x"], [1.0]), TypeError, "r1 must hold numbers"),
    (lambda: na.KerplePower(torch.ones(1).int(), 1.0), TypeError, "r1 must be floating"),
    (lambda: na.KerpleLog(torch.tensor([-0.5]), 1.0), ValueError, "r1 must be .* got -0.5"),
    (lambda: na.KerpleLog([1.0], [0.0]), ValueError, "r2 must be finite and > 0, got 0.0"),
    (lambda: na.BAM([0.0], 1.0), ValueError, "alpha must be finite and > 0, got 0.0"),
    (lambda: na.BAM([1.0], -1.0, epsilon=0.0), ValueError, "beta must be .* > 0, got -1.0"),
    (lambda: na.BAM([1.0], 1.0, epsilon=-1.0), ValueError, "epsilon must be .* >= 0, got -1.0"),
    (lambda: na.BAM([1.0], 1.0, mu=np.inf), ValueError, "mu must be finite, got inf"),
    (lambda: na.Sandwich(0), ValueError, "num_heads must be between 1"),
    (lambda: na.Sandwich(2, 7), ValueError, "dimension must be a multiple of .* = 2, got 7"),
    (lambda: na.Sandwich(2, lambdas=[1.0, 0.0]), ValueError, "lambdas must be .* > 0, got 0.0"),
    (lambda: na.Sandwich(2).concatenated(*SMALL[:2], scale=0.0), ValueError, "scale must not be 0"),
    (lambda: na.Sandwich(3).concatenated(*SMALL[:2]), ValueError, "must have .* 3 heads, got 2"),
    (lambda: na.T5(np.ones(3)), ValueError, r"values must have shape \(heads, buck"),
    (lambda: na.T5(np.ones((1, 3))), ValueError, "values must have at least 4 buckets, got 3"),
    (lambda: na.T5(np.ones((1, 32)), max_distance=8), ValueError, "max_distance must be .* 9"),
    (lambda: na.T5(np.ones((1, 32)), "no"), TypeError, "bidirectional must be True or False"),
    (lambda: na.T5([[np.nan] * 4]), ValueError, "values must not hold NaN or infinity, got nan"),
    (lambda: na.DistanceTable([1.0]), ValueError, r"table must have shape \(heads, distances\)"),
    (lambda: na.DistanceTable(np.ones((2, 0))), ValueError, "table must have shape"),
    (lambda: na.DistanceTable([[1.0]], 0.5), TypeError, "begin must be an integer, got 0.5"),
    (lambda: call(na.DistanceTable(np.ones((2, 5)))), ValueError, "0 to 5 .* got 5 from 0"),
    (lambda: na.DistanceFunction(3, 1), TypeError, "function must be callable, got 3"),
    (lambda: na.DistanceFunction(lambda d: 1.0, 1), ValueError, "function must return"),
    (lambda: na.DistanceFunction(lambda d: d * np.nan, 1), ValueError, "values must not"),
    (lambda: na.ForgetGates([[[0.5]]]), ValueError, "log_gates must be <= 0, .* got 0.5"),
    (lambda: na.ForgetGates([[0.5]]), ValueError, r"log_gates must have shape \(batch, h"),
    (lambda: call(na.ForgetGates(-np.ones((1, 2, 5)))), ValueError, r"shape \(1, 2, 6\), .* \(1"),
    (lambda: call(na.ForgetGates(np.full((1, 2, 6), -np.inf))), ValueError, "must be finite where"),
    (
        lambda: call(na.ForgetGates(-np.ones((1, 2, 6))), query_positions=np.arange(4)),
        ValueError,
        "query_positions must be None",
    ),
    (lambda: call(na.ForgetGates(-np.ones((1, 2, 6))), align="start"), ValueError, "align 'end'"),
    (lambda: na.BiALiBi([1.0], [1.0, 2.0], 1.0), ValueError, "left must have 1 heads, got 2"),
    (lambda: na.ALiBi(2, exempt=-1), ValueError, "exempt must be between 0"),
    (lambda: call(na.KerpleLog([1.0] * 3, 1.0)), ValueError, "bias must have query's 2 heads"),
    (
        lambda: call(na.KerpleLog([1.0] * 2, 1.0), query_positions=np.ones(4)),
        TypeError,
        "query_positions must be integers, got dtype float64",
    ),
    (
        lambda: call(na.KerpleLog([1.0] * 2, 1.0), key_positions=np.array([0, 1, 2, 3, 4, 2**30])),
        ValueError,
        "positions must be less than 67108864 apart",
    ),
    (lambda: call(None, align="middle"), ValueError, "align must be one of 'end', 'start'"),
    (
        lambda: call(None, align="start", query_positions=np.arange(4)),
        ValueError,
        "query_positions must be None with align='start'",
    ),
    (
        lambda: na.KerplePower(torch.ones(1, requires_grad=True), 1.0).tensor(2, 2),
        ValueError,
        "must not require grad here",
    ),
    (lambda: na.AlibiAttention(2, 4, align="x"), ValueError, "align must be one of"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "error", "message"), BAD, ids=[x[2][:40] for x in BAD])
def test_bad_input_gets_a_sentence(
    attempt: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attempt()


def test_key_norms_are_not_for_exempt_tokens() -> None:
    norms = na.KeyNorms().update(SMALL[1])
    with pytest.raises(ValueError, match="key_norms must be None with"):
        call(na.ALiBi(2, exempt=1), key_norms=norms)
    call(na.KerpleLog([1.0, 2.0], UNIT), key_norms=norms)
