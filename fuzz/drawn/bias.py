"""A drawn bias: the argument, the oracle's values and the parameters to differentiate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fuzz.draw import Draw
from fuzz.drawn.arrays import NUMPY, Format, tensor
from fuzz.drawn.places import Places
from fuzz.drawn.sizes import Sizes

Floats = NDArray[np.float64]

#: Sums values of all pairs, times the bias's derivative or its magnitude, to a parameter's shape.
Gather = Callable[[Floats, bool], Floats]


class Parameter(NamedTuple):
    """A tensor that requires grad, and how its gradient follows from the gradient of the scores."""

    name: str
    tensor: torch.Tensor
    gather: Gather


@dataclass(frozen=True)
class DrawnBias:
    """A bias.

    Attributes:
        passed: the argument of `attention`.
        values: the bias of all pairs, broadcastable to (batch, heads, Q, K); -inf hides.
        parameters: the parameters that require grad.
        error: a bound of its errors beside roundings relative to it.
    """

    passed: Any
    values: Floats
    parameters: tuple[Parameter, ...] = ()
    error: float = 0.0


class Scene(NamedTuple):
    """The inputs on which a bias can depend.

    Attributes:
        draw: the choices.
        sizes: the shape.
        places: positions and mask.
        form: dtype and framework of the call.
        learned: whether parameters require grad.
    """

    draw: Draw
    sizes: Sizes
    places: Places
    form: Format
    learned: bool

    @property
    def distance(self) -> Floats:
        """Distances (1 or batch, 1, Q, K)."""
        return self.places.pairs.distance.astype(np.float64)

    def parameter(self, array: Any) -> tuple[Any, Floats]:
        """Return a parameter as an array, a list or a tensor, and its exact values."""
        draw, array = self.draw, np.asarray(array, np.float64)
        name = draw.one_of(("float32", "float64") if not self.learned else ("float32",))
        stored = array.astype(NUMPY[name])
        exact = stored.astype(np.float64)
        if self.learned or (self.form.tensors and draw.chance(0.6)):
            return tensor(stored.copy()).requires_grad_(self.learned), exact
        if draw.chance(0.2) and stored.ndim:
            return stored.astype(stored.dtype.newbyteorder(">")), exact
        return (exact.tolist() if draw.chance(0.2) else stored), exact

    def per_head(self, least: float, most: float) -> tuple[Any, Floats]:
        """Draw a positive value per head between two powers of ten."""
        exponents = self.draw.generator.uniform(least, most, self.sizes.heads)
        return self.parameter(10.0**exponents)

    def learn(self, name: str, passed: Any, gather: Gather) -> tuple[Parameter, ...]:
        """Return the parameter if it requires grad."""
        return (Parameter(name, passed, gather),) if self.learned else ()


def column(array: Floats) -> Floats:
    """Reshape values per head to (heads, 1, 1)."""
    return array.reshape(-1, 1, 1)


def over_heads(partial: Floats) -> Gather:
    """Return the gather of a parameter with one value per head."""

    def gather(of_scores: Floats, sizes: bool) -> Floats:
        derivative = np.abs(partial) if sizes else partial
        return _sum_product(of_scores, derivative, (0, 2, 3))

    return gather


def _sum_product(of_scores: Floats, derivative: Floats, axes: tuple[int, ...]) -> Floats:
    # a hidden pair has weight 0, and a derivative that may be infinite
    products = np.where(of_scores == 0.0, 0.0, derivative) * of_scores
    total: Floats = products.sum(axis=axes)
    return total


def to_shape(partial: Floats, shape: tuple[int, ...]) -> Gather:
    """Return the gather of slopes (heads,), (batch, heads) or (batch, heads, Q)."""

    def gather(of_scores: Floats, sizes: bool) -> Floats:
        derivative = np.abs(partial) if sizes else partial
        rows = _sum_product(of_scores, derivative, (3,))
        axes = (0, 2) if len(shape) == 1 else (2,) if len(shape) == 2 else ()
        total: Floats = rows.sum(axis=axes)
        one_row = len(shape) > 1 and shape[0] == 1
        return total.sum(axis=0, keepdims=True) if one_row else total

    return gather


def by_index(index: NDArray[np.int64], shape: tuple[int, int]) -> Gather:
    """Return the gather of a table (heads, columns), of which a pair reads column `index`."""

    def gather(of_scores: Floats, sizes: bool) -> Floats:
        del sizes  # the derivative is 1
        table = np.zeros(shape)
        where = np.broadcast_to(index, of_scores.shape)
        inside = (where >= 0) & (where < shape[1]) & (of_scores != 0.0)
        heads = np.broadcast_to(np.arange(shape[0])[:, None, None], of_scores.shape)
        np.add.at(table, (heads[inside], where[inside]), of_scores[inside])
        return table

    return gather
