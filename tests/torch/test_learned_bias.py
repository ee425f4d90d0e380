"""Modules that learn the parameters of biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi.torch import learned_bias

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
        position()  # a call checks the parameters
    assert {p.dtype for p in position.bfloat16().parameters()} == {torch.float32}


def test_first_draws_are_those_of_the_authors() -> None:
    generator = torch.Generator().manual_seed(0)
    power = learned_bias.LearnedKerplePower(2000, generator=generator)()
    log = learned_bias.LearnedKerpleLog(2000, generator=generator)()
    for values, most in ((power.r1, 1.0), (power.r2, 2.0), (log.r1, 2.0), (log.r2, 1.0)):
        assert 0.0 < values.min() < 0.02 * most
        assert 0.98 * most < values.max() < most
        assert abs(values.mean() - most / 2) < 0.03 * most
    with torch.no_grad():
        first = learned_bias.LearnedBAM(8)().over(0, 50)
    expected = na.KerplePower(na.alibi_slopes(8), 1.0).over(0, 50)
    np.testing.assert_allclose(first, expected, rtol=1e-6, atol=2e-5)  # epsilon is 1e-5


def test_biases_start_with_the_values_that_are_given() -> None:
    slopes = na.alibi_slopes(8)
    power = learned_bias.LearnedKerplePower(8, r1=torch.tensor(slopes), r2=1.0)()
    log = learned_bias.LearnedKerpleLog(8, r1=slopes * 1024, r2=2.0**-10)()
    bam = learned_bias.LearnedBAM(8, alpha=slopes / 2, beta=[0.0, -1.0] * 4)()
    # a parameter |x| <= 512 is rounded to float32, and so is its function
    for value, expected in (
        (power.r1, slopes), (power.r2, np.ones(8)), (log.r1, slopes * 1024),
        (log.r2, np.full(8, 2.0**-10)), (bam.alpha, slopes / 2), (bam.beta, [0.0, -1.0] * 4),
    ):  # fmt: skip
        np.testing.assert_allclose(value.detach(), expected, rtol=1e-6, atol=0)
    drawn = [learned_bias.LearnedKerplePower(8, r1=0.5).r2 for _ in range(2)]
    assert not torch.equal(*drawn)
    with torch.no_grad():
        flat = learned_bias.LearnedBAM(8, alpha=1.0, beta=0.0)().over(0, 100)
    assert (flat == -1.0).all()


def test_forget_gates_can_start_as_alibi() -> None:
    slopes = na.alibi_slopes(4).astype(np.float64)
    gates = learned_bias.LearnedForgetGates(16, 4, bias=-np.log(np.expm1(slopes)))
    with torch.no_grad():
        bias = gates(torch.zeros(1, 6, 16)).tensor(6, 6)
    torch.testing.assert_close(bias, na.ALiBi(4).tensor(6, 6, torch.float32))
    one_for_all = learned_bias.LearnedForgetGates(16, 4, bias=2.0)
    assert one_for_all.linear.bias.tolist() == [2.0] * 4
    with pytest.raises(ValueError, match="bias must have 4 heads, got 3"):
        learned_bias.LearnedForgetGates(16, 4, bias=[1.0, 2.0, 3.0])
