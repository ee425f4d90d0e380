"""What is kept between calls is found by all that it depends on, and no caller's memory is kept."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs

HEADS = 4


class Flatter(NamedTuple):
    """A scaling that is a tuple: equal to any other tuple with the same factor."""

    factor: float

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return exponents + np.log2(self.factor)


class Steeper(NamedTuple):
    """Another one."""

    factor: float

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return exponents - np.log2(self.factor)


class Doubled(na.ALiBi):
    """A subclass with a bias of its own."""

    def kernel_bias(self, problem: Any, like: Any = None) -> Any:
        return na.ALiBi(HEADS, slopes=2 * na.alibi_slopes(HEADS)).kernel_bias(problem, like)


def by_slopes(factor: float) -> na.ALiBi:
    return na.ALiBi(HEADS, slopes=factor * na.alibi_slopes(HEADS))


def test_equal_scalings_of_two_classes_are_two_scalings() -> None:
    arrays, both = inputs(1, HEADS, 2, 30, 30, 8), (Flatter(4.0), Steeper(4.0))
    assert both[0] == both[1]
    assert na.ALiBi(HEADS, both[0]) != na.ALiBi(HEADS, both[1])
    for scaling, factor in zip(both, (0.25, 4.0), strict=True):
        found = na.attention(*arrays, na.ALiBi(HEADS, scaling))
        np.testing.assert_array_equal(found, na.attention(*arrays, by_slopes(factor)))


def test_a_subclass_is_asked_for_its_bias() -> None:
    arrays, padding = inputs(1, HEADS, 2, 30, 30, 8), np.ones((1, 30))
    for options in ({}, {"key_padding_mask": padding}):
        found = na.attention(*arrays, Doubled(HEADS), **options)
        np.testing.assert_array_equal(found, na.attention(*arrays, by_slopes(2.0), **options))


@pytest.mark.slow
def test_equal_biases_are_equal_in_another_process() -> None:
    bias = na.ALiBi(HEADS, sides="symmetric")
    hash(bias)  # which is kept, and differs between processes
    code = (
        "import pickle, sys, ntk_alibi as na; x = pickle.load(sys.stdin.buffer); "
        f"y = na.ALiBi({HEADS}, sides='symmetric'); assert x == y and hash(x) == hash(y)"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(bias), check=True)


def test_arrays_of_a_bias_are_copies() -> None:
    slopes = na.alibi_slopes(HEADS)
    bias, arrays = na.ALiBi(HEADS, slopes=slopes), inputs(1, HEADS, 2, 9, 9, 8)
    before = na.attention(*arrays, bias)
    slopes[:] = 0.0
    np.testing.assert_array_equal(na.attention(*arrays, bias), before)
    assert not bias.slopes.flags.writeable


def positions() -> dict[str, torch.Tensor]:
    at = torch.arange(12, dtype=torch.int32)
    return {"query_positions": at, "key_positions": at.clone()}


def segments(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {"segment_ids": torch.tensor([0] * 5 + [1] * 7, dtype=dtype)}


@pytest.mark.parametrize(
    ("made", "name", "value"),
    [
        (positions, "query_positions", torch.arange(7, 19)),
        (lambda: segments(torch.int32), "segment_ids", torch.tensor([0] * 9 + [1] * 3)),
        (lambda: segments(torch.int64), "segment_ids", torch.tensor([0] * 9 + [1] * 3)),
    ],
)
def test_gradients_are_of_the_options_of_the_call(
    made: Callable[[], dict[str, torch.Tensor]], name: str, value: torch.Tensor
) -> None:
    tensors = [torch.from_numpy(x).requires_grad_() for x in inputs(1, HEADS, 2, 12, 12, 8)]

    def gradient(*, change: bool) -> torch.Tensor:
        options: Any = made()
        output = na.attention(*tensors, na.ALiBi(HEADS), **options)
        if change:
            options[name].copy_(value)
        return torch.autograd.grad(output.square().sum(), tensors[0])[0]

    torch.testing.assert_close(gradient(change=True), gradient(change=False), rtol=0, atol=0)


def test_ids_may_have_any_order_in_memory() -> None:
    arrays, ids = inputs(2, HEADS, 2, 12, 12, 8), np.array([[0] * 5 + [1] * 7, [0] * 3 + [1] * 9])
    expected = na.attention(*arrays, segment_ids=ids)
    for other in (np.asfortranarray(ids), np.ascontiguousarray(ids.T).T):
        np.testing.assert_array_equal(na.attention(*arrays, segment_ids=other), expected)


def test_a_kernel_form_with_other_slopes_attends_by_these() -> None:
    """The core's object that it had was of the former ones."""

    class Doubling(na.ALiBi):
        def kernel_bias(self, problem: Any, like: Any = None) -> Any:
            kernel = super().kernel_bias(problem, like)
            return kernel._replace(left=2 * kernel.left)

    arrays = inputs(1, HEADS, 2, 30, 30, 8)
    tensors = [torch.from_numpy(x) for x in arrays]
    expected = na.attention(*arrays, by_slopes(2.0))
    np.testing.assert_array_equal(na.attention(*arrays, Doubling(HEADS)), expected)
    np.testing.assert_array_equal(na.attention(*tensors, Doubling(HEADS)).numpy(), expected)
