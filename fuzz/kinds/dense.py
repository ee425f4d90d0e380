"""Dense biases: `tensor` of every bias, and `build_alibi_tensor`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import ntk_alibi as na
from fuzz.bounds import Interval
from fuzz.compare import WrongError, compare, exactly
from fuzz.draw import Draw
from fuzz.drawn.arrays import NUMPY, Format
from fuzz.drawn.bias import Scene
from fuzz.drawn.biases import drawn_bias
from fuzz.drawn.linear_biases import scaling_and_slopes
from fuzz.drawn.places import Places
from fuzz.drawn.sizes import Sizes
from fuzz.oracle.pairs import MaskRule, Pairs

#: Roundings of a value: the parameter, its product with the distance or the formula's result, and
#: the float32 result before it is rounded to its dtype.
ERROR = 6 * 2.0**-24


def tensor(draw: Draw) -> None:
    """Check `bias.tensor`: the last query at the last key, -inf ahead for causal sides."""
    sizes = Sizes.drawn(draw, cheaper=3.0)
    form = Format.drawn(draw, wide=False)
    columns = np.arange(sizes.keys)[None]
    queries = np.arange(sizes.keys - sizes.queries, sizes.keys)[None]
    lengths = draw.integers(0, sizes.keys, sizes.batch) if draw.chance(0.5) else None
    real = None if lengths is None else columns >= sizes.keys - lengths[:, None]
    pairs = Pairs(queries, columns, real, MaskRule(causal=draw.chance(0.7)))
    scene = Scene(draw, sizes, Places({}, pairs, explicit=False), form, learned=False)
    _, bias = drawn_bias(scene)
    if not hasattr(bias.passed, "tensor"):
        return
    values = bias.values
    if bias.passed.sides == "causal":
        values = np.where(pairs.distance >= 0, values, -np.inf)
    arguments: dict[str, Any] = {"lengths": lengths}
    dtype = getattr(torch, form.name) if form.tensors else NUMPY[form.name]
    result = bias.passed.tensor(sizes.queries, sizes.keys, dtype, **arguments)
    if len(result) not in (1, sizes.batch):
        raise WrongError(f"tensor has {len(result)} rows, the batch {sizes.batch}")
    expected = np.broadcast_to(values, (len(result), *sizes.pairs[1:]))
    error = np.where(np.isinf(expected), 0.0, ERROR * np.abs(expected) + bias.error)
    compare("tensor", result, Interval(expected, error, error), form.name)
    out = torch.empty_like(result) if form.tensors else np.empty_like(result)
    if bias.passed.tensor(sizes.queries, sizes.keys, out=out, **arguments) is not out:
        raise WrongError("tensor did not return out")
    exactly("out", out, result)


def key_bias(draw: Draw) -> None:
    """Check `build_alibi_tensor`."""
    batch, keys = draw.integer(1, 4), draw.integer(0, 300)
    form = Format.drawn(draw)
    real = draw.generator.random((batch, keys)) < draw.one_of((0.0, 0.7, 1.0, 1.0))
    sizes = Sizes(batch, draw.integer(1, 24), 1, 1, keys, 1)
    pairs = Pairs(np.zeros((1, 1), np.int64), np.zeros((1, keys), np.int64), real)
    scene = Scene(draw, sizes, Places({}, pairs, explicit=False), form, learned=False)
    scaling, for_heads = scaling_and_slopes(scene)
    slopes = for_heads(sizes.heads)[..., 0]
    before = np.cumsum(real, axis=1) - 1.0
    anchor: Any = draw.one_of(("first", "last"))
    if anchor == "last":
        before = before - (real.sum(axis=1, keepdims=True) - 1.0)
    expected = slopes[:, :, None] * np.where(real, before, 0.0)[:, None]
    expected = expected.reshape(batch * sizes.heads, 1, keys)
    error = ERROR * np.abs(expected)
    mask = form.whole(draw, real)
    dtype = getattr(torch, form.name) if form.tensors else NUMPY[form.name]
    result = na.build_alibi_tensor(mask, sizes.heads, dtype, scaling, anchor=anchor)
    compare("build_alibi_tensor", result, Interval(expected, error, error), form.name)
