"""Biases of a whole model that are cut by heads: every kind of `KernelBias`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs
from ntk_alibi.biases import BiasObject, KernelBias, Problem
from ntk_alibi.masks import Cut

HEADS, LENGTH = 8, 70
RANDOM = np.random.default_rng(1)
PER_HEAD = np.arange(1.0, HEADS + 1) / 10
OF_QUERIES = RANDOM.random((2, HEADS, LENGTH), np.float32)

#: Biases of all heads.
BIASES: dict[str, Any] = {
    "slopes": na.ALiBi(HEADS, na.NTK(4.0)),
    "slopes of rows": na.ALiBi(HEADS, slopes=OF_QUERIES[..., 0]),
    "slopes of queries": na.ALiBi(HEADS, slopes=OF_QUERIES),
    "slopes of lengths": na.ALiBi(HEADS, na.DynamicNTK(2.0, 16, per="query")),
    "pairs": na.ALiBi(HEADS, slopes=(OF_QUERIES, PER_HEAD), sides="two_slopes"),
    "halves": na.ALiBi(HEADS, sides="halves"),
    "a knee": na.ALiBi(HEADS, na.Knee(10, 4.0)),
    "a knee of pairs": na.ALiBi(
        HEADS, na.Knee(10, 4.0), slopes=(PER_HEAD, OF_QUERIES), sides="two_slopes"
    ),
    "exempt tokens": na.ALiBi(HEADS, exempt=3),
    "a constant": na.BiALiBi(PER_HEAD, PER_HEAD / 2, PER_HEAD[::-1].copy()),
    "a power": na.KerplePower(PER_HEAD, np.ones(HEADS)),
    "a table": na.DistanceTable(RANDOM.random((HEADS, 2 * LENGTH)), -LENGTH),
    "buckets": na.T5(RANDOM.random((HEADS, 32))),
    "a function": na.DistanceFunction(lambda d: -np.outer(PER_HEAD, abs(d)), HEADS),
    "sums": na.ForgetGates(-RANDOM.random((2, HEADS, LENGTH))),
}


ARRAYS = inputs(2, HEADS, HEADS, LENGTH, LENGTH, 16)


class Dense(BiasObject):
    """A dense bias of any shape that broadcasts to (batch, heads, queries, keys)."""

    def __init__(self, values: Any) -> None:
        self.define(values=values, num_heads=HEADS, sides="symmetric")

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        del problem, like
        return KernelBias(dense=self.values)


BIASES |= {
    f"dense of {shape}": Dense(RANDOM.random(shape, np.float32))
    for shape in (
        (2, HEADS, LENGTH, LENGTH), (HEADS, 1, LENGTH), (2, 1, LENGTH, 1), (1, LENGTH), (LENGTH,),
    )
}  # fmt: skip


class SomeHeads(BiasObject):
    """Some heads of a bias, as a bias of so many heads."""

    def __init__(self, whole: BiasObject, heads: slice) -> None:
        count = heads.stop - heads.start
        self.define(whole=whole, heads=heads, num_heads=count, sides=whole.sides)

    @property
    def parameters(self) -> tuple[Any, ...]:
        return self.whole.parameters

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        every = problem._replace(shape=(problem.shape[0], HEADS, *problem.shape[2:]))
        return self.whole.kernel_bias(every, like).cut(Cut(heads=self.heads), every.shape)


def check(bias: Any, heads: slice, some: dict[str, Any], every: dict[str, Any]) -> None:
    """Compare heads that are computed alone with the same among all."""
    causal = bias.sides == "causal"
    part = [x[:, heads] for x in ARRAYS]
    alone = na.attention(*part, SomeHeads(bias, heads), causal=causal, **some)
    whole = na.attention(*ARRAYS, bias, causal=causal, **every)
    np.testing.assert_array_equal(alone, whole[:, heads])


@pytest.mark.parametrize("heads", [slice(0, 3), slice(2, 5), slice(7, 8)])
@pytest.mark.parametrize("name", BIASES)
def test_some_heads_are_those_of_the_whole_model(name: str, heads: slice) -> None:
    check(BIASES[name], heads, {}, {})


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ["slopes of queries", "a knee of pairs", "dense of (1, 70)"])
def test_strengths_of_log_n_are_cut_with_the_heads(name: str, biased: bool) -> None:
    for strength in (0.5, tuple(PER_HEAD)):
        log_n, heads = na.LogN(8, strength, biased=biased), slice(3, 6)
        own = strength[heads] if isinstance(strength, tuple) else strength
        some = na.LogN(8, own, biased=biased)
        check(BIASES[name], heads, {"log_n": some}, {"log_n": log_n})


@pytest.mark.parametrize("name", ["pairs", "a knee of pairs", "a constant", "a table", "sums"])
def test_gradients_reach_the_parameters_of_their_heads(name: str) -> None:
    heads, bias = slice(2, 5), BIASES[name]
    gradients = []
    for some in (False, True):
        values = [torch.tensor(x.copy(), requires_grad=True) for x in bias.parameters]
        own: Any = LEARNED[name](*values)
        tensors = [torch.from_numpy(x[:, heads] if some else x) for x in ARRAYS]
        made = SomeHeads(own, heads) if some else own
        output = na.attention(*tensors, made, causal=own.sides == "causal")
        output = output if some else output[:, heads]
        gradients.append(torch.autograd.grad(output.square().sum(), values))
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


LEARNED: dict[str, Any] = {
    "pairs": lambda *x: na.ALiBi(HEADS, slopes=x, sides="two_slopes"),
    "a knee of pairs": lambda *x: na.ALiBi(HEADS, na.Knee(10, 4.0), slopes=x, sides="two_slopes"),
    "a constant": na.BiALiBi,
    "a table": lambda x: na.DistanceTable(x, -LENGTH),
    "sums": na.ForgetGates,
}
