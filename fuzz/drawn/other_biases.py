"""Biases that are not functions of distance: none, dense, forget gates, a user's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import ntk_alibi as na
from fuzz.drawn.arrays import NUMPY, tensor
from fuzz.drawn.bias import DrawnBias, Gather, Scene
from fuzz.oracle import biases
from ntk_alibi.biases import BiasObject, KernelBias

Floats = NDArray[np.float64]


def no_bias(scene: Scene) -> DrawnBias:
    """Return no bias."""
    return DrawnBias(None, np.zeros((1, 1, scene.sizes.queries, scene.sizes.keys)))


def dense(scene: Scene) -> DrawnBias:
    """Draw dense values of any shape that broadcasts; -inf and huge ones among them."""
    draw, (batch, heads, queries, keys) = scene.draw, scene.sizes.pairs
    shapes = [
        (batch, heads, queries, keys),
        (batch, 1, queries, keys),
        (heads, 1, keys),
        (queries, keys),
        (queries, 1),
        (keys,),
        (1,),
    ]
    array = draw.normal(*draw.one_of(shapes)) * draw.power(-1, 1.5)
    chance = draw.generator.random(array.shape)
    if draw.chance(0.4):
        array[chance < 0.2] = -np.inf
    if draw.chance(0.15):
        array[chance > 0.9] = draw.one_of((-1e4, -1e9, -1e30, 1e3))
    name = "float32" if scene.learned else draw.one_of(("float32", *NUMPY))
    with np.errstate(over="ignore"):  # -1e30 is -infinity in float16
        stored = array.astype(NUMPY[name])
    exact = stored.astype(np.float64)
    passed: Any = tensor(stored) if scene.form.tensors else stored
    if not scene.form.tensors and name in ("float32", "float64") and draw.chance(0.2):
        passed = stored.astype(stored.dtype.newbyteorder(">"))
    if scene.learned:
        passed.requires_grad_()
    return DrawnBias(passed, exact, scene.learn("dense", passed, _summed(exact.shape)))


def _summed(shape: tuple[int, ...]) -> Gather:
    """Return the gather of a dense bias, whose derivative is 1."""

    def gather(of_scores: Floats, sizes: bool) -> Floats:
        del sizes
        whole = (1,) * (4 - len(shape)) + shape
        axes = tuple(i for i, size in enumerate(whole) if size == 1)
        total: Floats = of_scores.sum(axis=axes, keepdims=True).reshape(shape)
        return total

    return gather


def forget_gates(scene: Scene) -> DrawnBias:
    """Draw forget gates; gates of padding do not count."""
    draw, (batch, heads, queries, keys) = scene.draw, scene.sizes.pairs
    gates = -np.abs(draw.normal(draw.one_of((1, batch)), heads, keys)) * draw.power(-3, 1)
    passed, array = scene.parameter(gates)
    real = scene.places.pairs.real
    used = array if real is None else np.where(real[:, None], array, 0.0)
    values = biases.forget_gates(used, queries)
    # prefix sums in float64 err by 2^-53 of themselves a step
    error = 2.0**-52 * (keys + 2) * float(np.abs(used).sum(axis=-1).max(initial=0.0))
    parameters = scene.learn("log_gates", passed, _prefix_sums(array.shape, real))
    return DrawnBias(na.ForgetGates(passed), values, parameters, error)


def _prefix_sums(shape: tuple[int, ...], real: NDArray[np.bool_] | None) -> Gather:
    """Return the gather of gates: C_i - C_j, C the prefix sums.

    Sizes add what rows and columns add to a gate before they cancel.
    """

    def gather(of_scores: Floats, sizes: bool) -> Floats:
        queries, keys = of_scores.shape[2:]
        sums = (1.0 if sizes else -1.0) * of_scores.sum(axis=2)
        sums[..., keys - queries :] += of_scores.sum(axis=3)
        of_gates = np.cumsum(sums[..., ::-1], axis=-1)[..., ::-1]
        if real is not None:
            of_gates = np.where(real[:, None], of_gates, 0.0)
        return of_gates.sum(axis=0, keepdims=True) if shape[0] == 1 else of_gates

    return gather


class PerKey(BiasObject):
    """A user's bias: one value per head and key."""

    def __init__(self, values: Any) -> None:
        self.define(values=values, num_heads=values.shape[0], sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        """Return a dense bias."""
        del problem, like
        return KernelBias(dense=self.values[None, :, None])  # type: ignore[attr-defined]


def foreign(scene: Scene) -> DrawnBias:
    """Draw a user's bias."""
    array = scene.draw.normal(scene.sizes.heads, scene.sizes.keys).astype(np.float32)
    passed: Any = tensor(array) if scene.form.tensors else array
    if scene.learned:
        passed.requires_grad_()

    def gather(of_scores: Floats, sizes: bool) -> Floats:
        del sizes
        total: Floats = of_scores.sum(axis=(0, 2))
        return total

    exact = array.astype(np.float64)[None, :, None]
    return DrawnBias(PerKey(passed), exact, scene.learn("values", passed, gather))
