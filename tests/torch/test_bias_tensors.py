"""Biases as tensors: gradients of their parameters, compiled, mapped and cast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

import ntk_alibi as na
from attention_checks import inputs
from bias_cases import NUMBERS, R1, R2
from ntk_alibi.biases.base import kernel_bias_of
from ntk_alibi.biases.distance import DistanceBias
from ntk_alibi.fused.gradients import attention_gradients
from ntk_alibi.masks import EVERYTHING, Problem
from ntk_alibi.torch import operator

# Gradients of parameters, against those of torch in float64 with a dense bias
# --------------------------------------------------------------------------------------------------

Written = Callable[..., torch.Tensor]


def learned() -> dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], Written]]:
    """Return constructors from parameters > 0, their shapes, and the bias of distances (Q, K)."""

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", learned())
def test_mapped_over_parameters(name: str, dtype: torch.dtype) -> None:
    """Several biases for the same queries and keys: numbers of a mapped tensor cannot be read."""
    make, shapes, _ = learned()[name]
    several = [torch.rand(2, *shape).add(0.1) for shape in shapes]
    arrays = [torch.from_numpy(x).to(dtype) for x in inputs(2, 4, 2, 90, 90, 16)]
    mapped = torch.vmap(lambda *own: na.attention(*arrays, make(*own)))(*several)
    for result, own in zip(mapped, zip(*several, strict=True), strict=True):
        torch.testing.assert_close(result, na.attention(*arrays, make(*own)))


@pytest.mark.parametrize("name", ["table", "gates", "BiALiBi"])
def test_operator_registrations(name: str) -> None:
    make, shapes, _ = learned()[name]
    parameters = [torch.rand(s).add(0.1).requires_grad_() for s in shapes]
    query, key, value = (torch.from_numpy(x).requires_grad_() for x in inputs(2, 4, 4, 90, 90, 4))
    form = kernel_bias_of(make(*parameters), Problem((2, 4, 90, 90)), query)
    tensors = (getattr(form, name, None) for name in operator.OPTIONAL_TENSORS)
    rule = (form.table_begin, form.knee, form.exempt, EVERYTHING.numbers(), True, 0.3, 0.0, [])
    arguments = (query, key, value, *tensors, *rule)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(operator._attention, arguments, test_utils=checks)


def test_constant_biases_are_traced() -> None:
    arrays = [torch.from_numpy(x) for x in inputs(1, 3, 3, 50, 50, 8)]
    for bias in (na.KerplePower(R1, R2), na.Sandwich(3, 8), na.DistanceTable(NUMBERS, -100)):
        compiled = torch.compile(na.attention, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*arrays, bias), na.attention(*arrays, bias))


def test_other_devices_take_torchs_own_operations() -> None:
    meta = [torch.from_numpy(x).to("meta") for x in inputs(2, 4, 2, 90, 90, 8)]
    for name, (make, shapes, _) in learned().items():
        if name == "function":  # the function needs numbers
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
