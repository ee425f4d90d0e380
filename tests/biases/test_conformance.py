"""Any bias goes with every way to attend: those of the package, and those of strangers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from conformance import (
    HEADS,
    KEYS,
    WAYS,
    Case,
    attend,
    check_gradients,
    check_values,
    loss,
    numbers,
    tensors,
)
from conformance_cases import CASES, heads
from ntk_alibi.biases import BiasObject, KernelBias, parameter

# Biases of a stranger, who knows the docstring of KernelBias
# --------------------------------------------------------------------------------------------------


class PerKey(BiasObject):
    """A number for each key and head."""

    def __init__(self, values: Any) -> None:
        self._set(values=values, num_heads=len(values), sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        return KernelBias(dense=parameter(self.values, like)[None, :, None])


class Stairs(BiasObject):
    """A step down at each square: strengths (heads,) times the whole part of |d|^1/2."""

    def __init__(self, strengths: Any) -> None:
        self._set(strengths=strengths, num_heads=len(strengths), sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        first, last = problem.distances()
        steps = np.floor(np.sqrt(np.abs(np.arange(first, last + 1))))
        table = -parameter(self.strengths, like)[:, None] * parameter(steps, like)
        return KernelBias(table=table, table_begin=first)


FOREIGN = {
    "a number for each key": Case(PerKey, lambda place, x: x[None, :, None], (("H", "K"),)),
    "stairs": Case(Stairs, lambda p, x: -heads(x) * p.distance.abs().sqrt().floor(), (("H",),)),
}
BIASES = CASES | FOREIGN

EVERY = [
    pytest.param(BIASES[bias], WAYS[way], id=f"{bias}: {way}")
    for bias in BIASES
    for way in WAYS
    if WAYS[way].refusal(BIASES[bias]) is None
]
REFUSED = [
    pytest.param(BIASES[bias], WAYS[way], id=f"{bias}: {way}")
    for bias in BIASES
    for way in WAYS
    if WAYS[way].refusal(BIASES[bias]) is not None
]


@pytest.mark.parametrize(("case", "way"), EVERY)
def test_arrays_are_the_reference(case: Case, way: Any) -> None:
    check_values(case, way, attend(case, way, numbers(case, way)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("case", "way"), EVERY)
def test_tensors_are_the_reference(case: Case, way: Any, dtype: torch.dtype) -> None:
    check_values(case, way, attend(case, way, tensors(case, way, dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("case", "way"), EVERY)
def test_gradients_are_those_of_torch_in_float64(case: Case, way: Any, dtype: torch.dtype) -> None:
    sources = [x.requires_grad_() for x in tensors(case, way, dtype)]
    result = attend(case, way, sources)
    check_values(case, way, result)
    check_gradients(case, way, torch.autograd.grad(loss(*result), sources), dtype)


@pytest.mark.parametrize(("case", "way"), REFUSED)
def test_what_is_not_for_a_bias_is_refused_with_a_sentence(case: Case, way: Any) -> None:
    message = way.refusal(case)
    for sources in (numbers(case, way), tensors(case, way), tensors(case, way, torch.float64)):
        with pytest.raises(ValueError, match=message):
            attend(case, way, sources)
    with pytest.raises(ValueError, match=message):
        attend(case, way, [x.requires_grad_() for x in tensors(case, way)])
