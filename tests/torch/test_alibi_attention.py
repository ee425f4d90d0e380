"""The torch module with all its strategies."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ntk_alibi as na
from attention_checks import UNIT
from ntk_alibi.torch.alibi_attention import RANDOM_RANGE

HEADS, SIZE, QUERIES, KEYS = 6, 48, 20, 33
MASK = torch.arange(KEYS) >= torch.tensor([[0], [9]])  # left padding
DENSE = torch.randn(HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(5))
OWN = torch.linspace(0.0, 0.8, HEADS)


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, length, SIZE) for length in (QUERIES, KEYS, KEYS)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    ]


def module(*args: Any, seed: int = 1, **options: Any) -> na.AlibiAttention:
    """Return a module with reproducible values."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return na.AlibiAttention(HEADS, SIZE, *args, **options)


def symmetric(slopes: Any) -> Callable[[na.AlibiAttention], torch.Tensor]:
    """Return a function that computes the bias -m |i - j|, (1 or batch, heads, queries, keys)."""
    known = torch.as_tensor(np.asarray(slopes))
    return lambda _: _penalty(known, known)


def _penalty(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    distance = torch.arange(KEYS - QUERIES, KEYS)[:, None] - torch.arange(KEYS)
    left, right = (x.double()[..., None, None] for x in (left, right))
    return -torch.where(distance > 0, left, right) * distance.abs()


def own(attention: na.AlibiAttention) -> torch.Tensor:
    """Return the bias of all pairs with the module's slopes."""
    assert attention.slopes is not None
    slopes = attention.slopes()
    return _penalty(*slopes) if isinstance(slopes, tuple) else _penalty(slopes, slopes)


STANDARD = na.reference.alibi_slopes(HEADS)
DYNAMIC = na.DynamicNTK(2.0, 16)

#: Arguments of the module, and the expected bias in float64.
STRATEGIES: dict[str, tuple[dict[str, Any], Callable[[na.AlibiAttention], torch.Tensor]]] = {
    "standard": ({}, symmetric(STANDARD)),
    "number": ({"slopes": 0.25}, symmetric([0.25] * HEADS)),
    "tensor": ({"slopes": OWN}, symmetric(OWN)),
    "list": ({"slopes": [1] * HEADS}, symmetric([1.0] * HEADS)),
    "tuple": ({"slopes": tuple(OWN.tolist())}, symmetric(OWN)),
    "array": ({"slopes": na.alibi_slopes(HEADS)}, symmetric(STANDARD)),
    "parameter": (
        {"slopes": nn.Parameter(OWN.clone())},
        own,
    ),
    "random": ({"slopes": "random"}, own),
    "learned": ({"slopes": "learned"}, own),
    "two_sided": ({"slopes": "two_sided", "causal": False}, own),
    "NTK": ({"scaling": na.NTK(4.0)}, symmetric(na.reference.ntk_slopes(STANDARD, 4.0))),
    "dynamic": (
        {"scaling": DYNAMIC},
        symmetric(na.alibi_slopes(HEADS, DYNAMIC, MASK.sum(dim=1))),
    ),
    "object": (
        {"bias": na.ALiBi(HEADS, slopes=(OWN, 2 * OWN), sides="two_slopes")},
        lambda _: _penalty(OWN, 2 * OWN),
    ),
    "an array": ({"bias": DENSE}, lambda _: DENSE.double()),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "encoder": {"causal": False},
    "causal": {},
    "window": {"causal": False, "window": 7},
    "GQA": {"num_kv_heads": 2},
    "MQA": {"num_kv_heads": 1, "window": 12},
}


def plain(
    attention: na.AlibiAttention, arrays: list[torch.Tensor], bias: torch.Tensor
) -> torch.Tensor:
    """Compute the module's formula by dense matrices in float64."""
    distance = torch.arange(KEYS - QUERIES, KEYS)[:, None] - torch.arange(KEYS)
    seen = MASK[:, None, None, :].expand(2, 1, QUERIES, KEYS)
    if attention.causal:
        seen = seen & (distance >= 0)
    if attention.window is not None:
        seen = seen & (distance.abs() < attention.window)
    layers = (attention.q_linear, attention.k_linear, attention.v_linear)
    q, k, v = (
        nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
        .reshape(2, x.shape[1], -1, attention.head_dim)
        .transpose(1, 2)
        for x, layer in zip(arrays, layers, strict=True)
    )
    k, v = (x.repeat_interleave(HEADS // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.mT / math.sqrt(attention.head_dim) + bias).masked_fill(~seen, -math.inf)
    merged = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(2, QUERIES, SIZE)
    out = attention.out_linear
    return nn.functional.linear(merged, out.weight.double(), out.bias.double())


@torch.no_grad()
def rounding(attention: na.AlibiAttention, arrays: list[torch.Tensor], bias: torch.Tensor) -> float:
    """Return a bound on the error of float32 from the greatest magnitudes; u = 2^-24.

    Projections, at most P, err by (E + 2) u P. Scores, at most A = sqrt(D) P^2, err by the errors
    of both factors, (D + 8) u A and 4 u (A + |bias|). Means err by twice that, 72 u for their sums
    and the error of the values; the last projection errs like the first ones.
    """
    layers = (attention.q_linear, attention.k_linear, attention.v_linear)
    most = max(
        float((x.double().abs() @ layer.weight.double().abs().T + layer.bias.abs()).max())
        for x, layer in zip(arrays, layers, strict=True)
    )
    score = math.sqrt(attention.head_dim) * most**2
    error = (2 * (SIZE + 2) + attention.head_dim + 12) * score + 4 * float(bias.abs().max())
    mean = most * (2 * error + 72 + SIZE + 2)
    row = float(attention.out_linear.weight.abs().sum(dim=1).max())
    return UNIT * (row * mean + (SIZE + 2) * (row * most + 1))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_formula(name: str, options: str) -> None:
    arguments, bias_of = STRATEGIES[name]
    attention = module(**{**OPTIONS[options], **arguments})
    bias = bias_of(attention).detach()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            result = attention(*inputs(), key_padding_mask=MASK)
        difference = (result.double() - plain(attention, inputs(), bias)).abs()
        assert difference.max() <= rounding(attention, inputs(), bias)
    wide = attention.double()
    expected = plain(wide, inputs(torch.float64), bias)
    # Slopes are float32; the standard slopes were rounded to it.
    allowed = UNIT * float(bias.abs().max()) * 8 + 1e-12
    assert (wide(*inputs(torch.float64), key_padding_mask=MASK) - expected).abs().max() <= allowed


def test_keys_ahead_are_hidden_by_default_as_in_attention() -> None:
    attention, x = module(), torch.randn(1, 9, SIZE)
    assert attention.causal is inspect.signature(na.attention).parameters["causal"].default is True
    ahead = x.clone()
    ahead[:, 5:] = 7.0
    for bias in (None, na.ALiBi(HEADS), na.ALiBi(HEADS, sides="halves")):
        layer = module(bias=bias)
        before, after = (layer(y, y, y) for y in (x, ahead))
        assert torch.equal(before[:, :5], after[:, :5])
        assert not torch.equal(before[:, 5:], after[:, 5:])
    with pytest.raises(
        ValueError, match=r"^slopes must be for one side with causal=True, got 'two_sided'"
    ):
        module("two_sided")
    with pytest.raises(ValueError, match=r"^bias must cover both sides .* with causal=False, got"):
        module(bias=na.ALiBi(HEADS), causal=False)


def test_more_queries_than_keys_say_where_they_are() -> None:
    q, x = torch.randn(1, 9, SIZE), torch.randn(1, 4, SIZE)
    for options in ({}, {"causal": False, "window": 5}):
        with pytest.raises(
            ValueError, match=r"^align must be 'start' for more queries than keys, got"
        ):
            module(**options)(q, x, x)
        assert module(align="start", **options)(q, x, x).shape == q.shape
    assert module(causal=False)(q, x, x).shape == q.shape


@pytest.mark.parametrize("name", ["parameter", "learned", "two_sided"])
def test_gradients_flow_into_slopes(name: str) -> None:
    arguments, bias_of = STRATEGIES[name]
    attention = module(**arguments)
    sources = list(attention.parameters())
    weights = torch.randn(2, QUERIES, SIZE, generator=torch.Generator().manual_seed(2))
    expected = plain(attention, inputs(), bias_of(attention))
    theirs = torch.autograd.grad((expected * weights).sum(), sources)
    mine = torch.autograd.grad(
        (attention(*inputs(), key_padding_mask=MASK) * weights).sum(), sources
    )
    for a, b in zip(mine, theirs, strict=True):
        assert b.abs().max() > 0 or b.numel() == SIZE  # softmax is blind to the keys' bias
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()) + 1e-5)


def test_fixed_slopes_are_not_trained_and_given_parameters_are_shared() -> None:
    for slopes in (0.5, OWN, "random"):
        assert all("slopes" not in name for name, _ in module(slopes).named_parameters())
    shared = nn.Parameter(OWN.clone())
    first, second = module(shared), module(shared)
    assert any(x is shared for x in first.parameters())
    assert first.slopes is not None
    assert second.slopes is not None
    assert first.slopes() is second.slopes() is shared


def test_random_slopes_are_the_generators() -> None:
    first, again, other = (
        module("random", generator=torch.Generator().manual_seed(seed)).slopes()
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first >= RANDOM_RANGE[0]).all()
    assert (first <= RANDOM_RANGE[1]).all()


KINDS = ["number", "parameter", "random", "learned", "two_sided"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", KINDS)
def test_slopes_keep_dtype_and_values_when_the_model_is_cast(name: str, dtype: torch.dtype) -> None:
    attention = nn.Sequential(module(**STRATEGIES[name][0]))[0]
    before = copy.deepcopy(attention.slopes.state_dict())
    if list(attention.slopes.parameters()):
        attention(*inputs()).sum().backward()
    attention.to(dtype)
    assert attention.q_linear.weight.dtype == dtype
    for key, x in attention.slopes.state_dict().items():
        assert x.dtype == torch.float32
        assert torch.equal(x, before[key])
    for parameter in attention.slopes.parameters():
        assert parameter.grad.dtype == torch.float32
    assert attention(*inputs(dtype)).dtype == dtype


@pytest.mark.parametrize("name", ["standard", *KINDS, "NTK"])
def test_other_devices(name: str) -> None:
    moved = module(**STRATEGIES[name][0]).to("meta")
    with torch.device("meta"):
        made = module(**(STRATEGIES[name][0] if name != "parameter" else {}))
    arrays = [x.to("meta") for x in inputs()]
    for attention in (moved, made):
        assert {x.device.type for x in attention.state_dict().values()} == {"meta"}
        output = attention(*arrays, key_padding_mask=MASK.to("meta"))
        assert output.device.type == "meta"
        assert output.shape == (2, QUERIES, SIZE)


@pytest.mark.parametrize("name", STRATEGIES)
def test_copies_say_the_same(name: str) -> None:
    arguments = STRATEGIES[name][0]
    attention = module(**arguments)
    with torch.no_grad():
        expected = attention(*inputs(), key_padding_mask=MASK)
        other = module(**copy.deepcopy(arguments), seed=9)
        other.load_state_dict(attention.state_dict())
        for again in (other, copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
            assert again is not attention
            assert torch.equal(again(*inputs(), key_padding_mask=MASK), expected)


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
@pytest.mark.parametrize("name", ["standard", *KINDS, "NTK"])
def test_compiled_in_one_graph(name: str) -> None:
    attention = module(**STRATEGIES[name][0], window=9)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    arrays = inputs()
    sources = list(attention.parameters())
    plain_gradients = torch.autograd.grad(attention(*arrays, key_padding_mask=MASK).sum(), sources)
    gradients = torch.autograd.grad(compiled(*arrays, key_padding_mask=MASK).sum(), sources)
    for a, b in zip(gradients, plain_gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
def test_dynamic_scalings_are_no_constants_of_a_graph() -> None:
    attention = module(scaling=DYNAMIC)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    for mask in (None, MASK, ~MASK | MASK):
        given = inputs()
        expected = attention(*given, key_padding_mask=mask)
        torch.testing.assert_close(compiled(*given, key_padding_mask=mask), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_slopes_are_float32_whatever_the_default_dtype(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        kinds = 0.3, "random", "learned", "two_sided"
        modules = [module(slopes, causal=False) for slopes in kinds]
    finally:
        torch.set_default_dtype(before)
    for attention in modules:
        assert attention.slopes is not None
        assert {x.dtype for x in attention.slopes.state_dict().values()} == {torch.float32}
        if "slopes" in attention.slopes.state_dict():  # no bfloat16 values in it
            assert not torch.equal(attention.slopes(), attention.slopes().bfloat16().float())
