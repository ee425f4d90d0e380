"""Tests that mistakes in a bias of one's own, and in the order of axes, get a sentence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BloomConfig, BloomModel

import ntk_alibi as na
from ntk_alibi.biases import BiasObject, KernelBias

QUERY = np.random.default_rng(0).standard_normal((1, 4, 9, 8), np.float32)
SWAPPED = QUERY.swapaxes(1, 2)
SLOPES = na.alibi_slopes(4)
ONE = SLOPES[None, :, None]
LAYOUT = r": they look like \(batch, length, heads, head_dim\), pass query.swapaxes\(1, 2\)"


class Forgetful(BiasObject):
    """A bias that forgets `define`."""

    def __init__(self, values: Any = None) -> None:
        del values

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        return KernelBias(dense=np.zeros((1, 1, 1, 1), np.float32))


class Own(BiasObject):
    """A bias with a kernel form of given fields."""

    def __init__(self, **fields: Any) -> None:
        self.define(fields=fields, num_heads=4, sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        return KernelBias(**self.fields)


def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return score


def attend(query: Any, key: Any = None, bias: Any = None, **options: Any) -> Any:
    key = query if key is None else key
    return na.attention(query, key, key, bias, **options)


def small_bloom() -> BloomModel:
    return BloomModel(BloomConfig(vocab_size=8, hidden_size=32, n_layer=1, n_head=4))


FORGOTTEN = r"bias must have num_heads, got Forgetful without: call self.define\(num_heads="

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    *[
        (call, TypeError, FORGOTTEN)
        for call in (
            lambda: attend(QUERY, bias=Forgetful()),
            lambda: attend(torch.from_numpy(QUERY), bias=Forgetful(), causal=False),
            lambda: Forgetful().tensor(2, 2),
            lambda: na.AlibiAttention(4, 16, bias=Forgetful()),
            lambda: na.patch(small_bloom(), Forgetful()),
            lambda: na.plots.bias_maps(Forgetful()),
        )
    ],
    (
        lambda: KernelBias(slopes=SLOPES),
        TypeError,
        "slopes must not be .* write left=slopes,",
    ),
    (
        lambda: KernelBias(biases=SLOPES),
        TypeError,
        "biases must not be .* write left, right, t",
    ),
    (lambda: attend(QUERY, bias=Own(slopes=ONE)), TypeError, "slopes must not be given to KernelB"),
    (
        lambda: attend(QUERY, bias=Own(left=SLOPES, right=SLOPES)),
        ValueError,
        r"left must have shape \(1 or batch, heads, 1 or queries\), got \(4,\)",
    ),
    (
        lambda: attend(QUERY, bias=Own(table=SLOPES)),
        ValueError,
        r"table must have shape \(heads, ",
    ),
    (lambda: attend(QUERY, bias=Own(left=ONE)), ValueError, "slopes as left and right, got left$"),
    *[
        (
            lambda bias=bias: attend(QUERY, bias=bias),
            TypeError,
            r"pass na.DistanceFunction\(fun",
        )
        for bias in (score_mod, functools.partial(score_mod, 1.0), max)
    ],
    (lambda: na.AlibiAttention(4, 16, bias=score_mod), TypeError, "pass na.DistanceFunction"),
    # the order of axes
    (lambda: attend(SWAPPED, bias=na.ALiBi(4)), ValueError, "9 heads, got ALiBi with 4" + LAYOUT),
    (
        lambda: attend(torch.from_numpy(SWAPPED), bias=na.KerpleLog([1.0] * 4, 1.0)),
        ValueError,
        "9 heads, got KerpleLog with 4" + LAYOUT,
    ),
    (
        lambda: attend(SWAPPED, SWAPPED[:, :, :2], na.ALiBi(4)),
        ValueError,
        "9 heads, got ALiBi with 4" + LAYOUT,
    ),
    (lambda: attend(SWAPPED, bias=np.zeros((4, 9, 9), np.float32)), ValueError, LAYOUT),
    (lambda: attend(SWAPPED, SWAPPED[:, :7]), ValueError, "key's 7 heads, got 9" + LAYOUT),
    (lambda: attend(QUERY, bias=na.ALiBi(8)), ValueError, "4 heads, got ALiBi with 8$"),
    (lambda: attend(QUERY[:, :3], QUERY), ValueError, "key's 4 heads, got 3$"),
]


@pytest.mark.parametrize(("attempt", "error", "message"), REFUSED, ids=[x[2] for x in REFUSED])
def test_a_mistake_is_named_with_what_to_write(
    attempt: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        attempt()
    assert "\n" not in str(caught.value)


def test_slopes_of_ones_own_are_alibi() -> None:
    given = attend(QUERY, bias=Own(left=ONE, right=ONE))
    assert np.array_equal(given, attend(QUERY, bias=na.ALiBi(4)))
