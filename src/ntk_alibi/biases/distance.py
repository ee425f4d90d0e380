"""Biases that depend on distance only.

Each class has one formula for arrays and tensors, in float64 over exact distances. The kernels read
a table of the formula's values, rounded to float32 at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import is_tracing
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias, check_covered
from ntk_alibi.biases.parameters import check_no_nan, checked_array, parameter
from ntk_alibi.masks import Problem

#: Constant tables of at most this many entries are cached.
MAX_CACHED = 2**20

#: The most distances that a table may span: 2 GiB for 8 heads.
MAX_SPAN = 2**26


@dataclass(frozen=True, eq=False)
class DistanceBias(BiasObject):
    """The base class of biases that are functions of the distance d = i - j of query and key."""

    #: Whether tables may be cached, and extended to any distance.
    _cacheable: ClassVar[bool] = True

    def over(self, first: int, last: int, like: Any = None) -> Any:
        """Return the bias at the distances first, first + 1, ... last, (heads, distances) float64.

        If `like` is a tensor, the result is a tensor on like's device, differentiable with respect
        to the parameters.
        """
        backend = backend_of(like)
        distances = backend.cast(backend.arange(last - first + 1) + first, "float64")
        parameters = (parameter(x, like, widest=True) for x in self.parameters)
        columns = (x[:, None] if x.ndim == 1 else x for x in parameters)
        return self._formula(backend.xp, distances, *columns)

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        """Return the bias (heads, distances), using functions that NumPy and torch share.

        Parameters are float64; parameters per head have shape (heads, 1).
        """
        raise NotImplementedError

    def _constant(self, first: int, last: int) -> KernelBias:
        """Return a bias of NumPy arrays over these distances, from the cache if it is small.

        Cached tables extend to the next power of two, because a growing key cache needs a longer
        table for every token.
        """
        begin, end = -_next_power_of_two(-first), _next_power_of_two(last)
        small = (end - begin + 1) * self.num_heads <= MAX_CACHED
        if small and self._cacheable and _arrays.first_tensor(*self.parameters) is None:
            try:
                return _cached(self, begin, end)
            except TypeError:  # an attribute has no hash
                pass
        table = _checks.as_float32("bias", _arrays.to_numpy(self.over(first, last)))
        return KernelBias(table=table, table_begin=first)

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the table over the distances of a problem."""
        first, last = self._span(problem)
        # Traced lengths may be symbols; the distances of columns need no limit.
        if not is_tracing() and last - first >= MAX_SPAN:
            raise ValueError(
                f"positions must be less than {MAX_SPAN} apart for a bias that is a table, got "
                f"distances {first} to {last}"
            )
        tensors = _arrays.first_tensor(*self.parameters) is not None
        precise = _arrays.is_tensor(like) and (
            is_tracing() or _arrays.dtype_name(like.dtype) == "float64"
        )
        if like is None or not (tensors or precise):
            return self._constant(first, last)
        return KernelBias(table=self.over(first, last, like), table_begin=first)

    def _span(self, problem: Problem) -> tuple[int, int]:
        if is_tracing() and self.covered_distances is not None:
            return self.covered_distances
        if not problem.traced:
            return problem.distances()
        if self.covered_distances is None:
            raise ValueError(
                "query_positions, key_positions and segment_ids must be None where torch traces a "
                "bias over distance: pass a DistanceTable, which covers fixed distances"
            )
        return self.covered_distances


def _next_power_of_two(number: int) -> int:
    """Return the least power of two that is at least number, or 0 if number <= 0."""
    return 1 << (number - 1).bit_length() if number > 0 else 0


@functools.lru_cache(maxsize=16)
def _cached(bias: DistanceBias, first: int, last: int) -> KernelBias:
    table = _checks.as_float32("bias", bias.over(first, last))
    table.flags.writeable = False
    kernel = KernelBias(table=table, table_begin=first)
    return kernel.with_core()


@dataclass(frozen=True, eq=False)
class DistanceTable(DistanceBias):
    """A bias read from a table by distance.

    Formula::

        bias[h, i, j] = table[h, d - begin],  d = i - j

    Args:
        table: (heads, distances) array or tensor, which may require grad; -inf hides keys.
        begin: the distance of the first column; if >= 0, the bias is for causal attention only.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: table has the wrong shape, NaN or +infinity, or begin is out of range; in
            `attention`, a visible distance is not in the table (NaN if torch traces or maps
            positions of float64 tensors).

    Example:
        >>> import ntk_alibi as na
        >>> na.DistanceTable([[0.0, -1.0, -3.0]], begin=-1).tensor(2, 2)[0, 0]
        array([[-1.,  0.],
               [-3., -1.]], dtype=float32)

    Source: this package.
    """

    table: Any
    begin: int = 0
    _cacheable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        table = checked_array("table", self.table, ("heads", "distances"), least=1)
        check_no_nan("table", table)
        begin = _checks.integer("begin", self.begin, minimum=-_checks.MAX_LENGTH)
        sides = "causal" if begin >= 0 else "symmetric"
        self.define(table=table, begin=begin, num_heads=int(table.shape[0]), sides=sides)

    def over(self, first: int, last: int, like: Any = None) -> Any:
        """Return the bias at a range of distances; see `DistanceBias`."""
        check_covered(self.begin, self.table.shape[1], (first, last))
        begin = max(first - self.begin, 0)
        part = self.table[:, begin : begin + last - first + 1]
        return parameter(part, like, widest=True)

    @property
    def covered_distances(self) -> tuple[int, int]:
        """The first and the last distance of the table."""
        return self.begin, self.begin + int(self.table.shape[1]) - 1


@dataclass(frozen=True, eq=False, init=False)
class DistanceFunction(DistanceBias):
    """A bias computed from the distance by a Python function.

    Formula::

        bias[h, i, j] = function(d)[h],  d = i - j

    Args:
        function: takes distances as a float64 NumPy array (n,) of integers, negative for keys
            ahead; returns an array or a tensor, which may require grad, of shape (heads, n), or
            (n,) for all heads. -inf hides keys.
        num_heads: H >= 1.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: num_heads is out of range, or the function returns another shape, NaN or
            +infinity.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> bias = na.DistanceFunction(lambda d: -np.sqrt(abs(d)), num_heads=1)
        >>> bias.tensor(1, 5)[0, 0, 0, [0, 3, 4]]
        array([-2., -1., -0.], dtype=float32)

    Source: this package.
    """

    function: Callable[[NDArray[np.float64]], Any]
    num_heads: int
    _cacheable: ClassVar[bool] = False

    def __init__(self, function: Callable[[NDArray[np.float64]], Any], num_heads: int) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, got {_checks.briefly(function)}")
        self.define(function=function, num_heads=_checks.num_heads(num_heads), sides="symmetric")
        self._evaluate(0, 1)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The function's value at distance 0, which requires grad if the function is learned."""
        return (self._evaluate(0, 0),)

    def over(self, first: int, last: int, like: Any = None) -> Any:
        """Return the bias at a range of distances; see `DistanceBias`."""
        values = self._evaluate(first, last)
        wide = parameter(values, like, widest=True)
        return backend_of(like).xp.broadcast_to(wide, (self.num_heads, wide.shape[-1]))

    def _evaluate(self, first: int, last: int) -> Any:
        count = last - first + 1
        values = self.function(np.arange(first, last + 1, dtype=np.float64))
        shape = tuple(values.shape) if hasattr(values, "shape") else None
        if shape not in ((count,), (self.num_heads, count)):
            raise ValueError(
                f"function must return ({self.num_heads}, {count}) or ({count},) for {count} "
                f"distances, got {repr(values) if shape is None else shape}"
            )
        check_no_nan("function's values", values)
        return values
