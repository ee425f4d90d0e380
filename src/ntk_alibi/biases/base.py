"""The base class of all biases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array, DTypeLike
from ntk_alibi._repr_html import ReprHtml
from ntk_alibi.biases import checks
from ntk_alibi.biases.dense import dense_bias
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.masks import Mask, Problem


@dataclass(frozen=True, eq=False)
class BiasObject(ReprHtml):
    """The base class of biases: subclasses implement `kernel_bias` and inherit the rest.

    A bias is a value: it is frozen, and compared and hashed by its numbers alone. Arrays among its
    attributes are read-only copies. Tensors are the caller's tensors; they may require grad, and
    are compared by their numbers at the time of the comparison.

    Attributes:
        num_heads: the number of heads.
        sides: "causal" if the bias is for causal attention only.
        heads: a slice, for a bias of heads heads.start to heads.stop - 1 only of a model with
            num_heads heads, as a rank of tensor parallelism computes them; None for all heads.
            Every bias takes it as a keyword, and parameters are still those of all heads.

    Example: see `KernelBias`.
    """

    num_heads: int = field(init=False, repr=False)
    sides: str = field(init=False, repr=False)
    heads: slice | None = field(default=None, kw_only=True, repr=False)

    def define(self, **values: Any) -> None:
        """Set attributes in the constructor of a subclass, whose instances are frozen.

        Args:
            values: attributes by name. `num_heads` and `sides` have no defaults.
        """
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.heads is not None and "num_heads" in values:
            heads = checks.slice_of_heads(self.heads, values["num_heads"])
            object.__setattr__(self, "heads", heads)

    @property
    def head_count(self) -> int:
        """The number of heads that the bias has: those of `heads`, or all."""
        return self.num_heads if self.heads is None else self.heads.stop - self.heads.start

    def of_own_heads(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return `kernel_bias` of the heads that the bias has."""
        if self.heads is None:
            return self.kernel_bias(problem, like)
        batch, _, *lengths = problem.shape
        every = problem._replace(shape=(batch, self.num_heads, *lengths))
        return self.kernel_bias(every, like).of_heads(self.heads)

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the bias in the form that the kernels take.

        Args:
            problem: shape, mask and positions of the call.
            like: None for NumPy numbers, or a tensor of the call. With a tensor, the result may
                hold tensors, through which autograd reaches the parameters; NumPy numbers in it are
                constants.
        """
        raise NotImplementedError

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The arrays and tensors that define the bias."""
        return tuple(filter(_arrays.is_array, vars(self).values()))

    @property
    def query_length(self) -> int | None:
        """The number of queries that the bias is for; None for any number."""
        return None

    @property
    def of_tokens(self) -> bool:
        """Whether the bias has numbers for each token; a rank then has those of its own tokens."""
        return False

    @property
    def covered_distances(self) -> tuple[int, int] | None:
        """The first and the last distance that the bias covers; None for all distances."""
        return None

    @property
    def rows(self) -> int:
        """The number of batch rows that the bias has numbers for."""
        return 1

    def tensor(
        self,
        query_length: int,
        key_length: int,
        dtype: DTypeLike | None = None,
        lengths: Any = None,
        out: Array | None = None,
    ) -> Array:
        """Return the dense bias, the last query aligned with the last key.

        Formula::

            out[b, h, i, j] = bias(i', j),  i' = key_length - query_length + i;  -inf for j > i' if
            sides == "causal"

        Args:
            query_length: Q >= 0.
            key_length: K >= 0.
            dtype: NumPy's or torch's float32 (default), bfloat16 or float16.
            lengths: for a dynamic scaling, the number of real tokens of each row, whose last token
                is the last key (left padding): (batch,) integers <= key_length. By default one row
                of key_length tokens.
            out: a buffer for the result, of its framework, shape and dtype; filled and returned.

        Returns:
            The bias, (1 or batch, heads, Q, K), a tensor if dtype is torch's, or if a parameter,
            lengths or out is a tensor, else a NumPy array. Values are float32, rounded to nearest
            even; distances are exact integers below 2^24.

        Raises:
            TypeError, ValueError: an argument is wrong, or a parameter requires grad (a dense bias
                is a constant).
        """
        queries = _checks.integer("query_length", query_length, minimum=0)
        keys = _checks.integer("key_length", key_length, minimum=0)
        rows = checks.row_lengths(lengths, keys)
        name = checks.result_dtype(dtype, out)
        torch = _arrays.is_torch_dtype(dtype) or any(
            map(_arrays.is_tensor, (*self.parameters, lengths, out))
        )
        real = None
        if lengths is not None:
            real = (np.arange(keys) >= keys - rows[:, None]).view(np.uint8)
        shape = (self.rows if lengths is None else len(rows), self.head_count, queries, keys)
        problem = Problem(shape, Mask(causal=self.sides == "causal"), real)
        bias = self.of_own_heads(problem).on(None).checked(problem)
        return dense_bias(bias, problem, name, out, torch=torch)

    def _values(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(_comparable(self._values()) == _comparable(other._values()))

    def __hash__(self) -> int:
        return hash((type(self), _comparable(self._values())))


def _comparable(value: Any) -> Any:
    """Return a hashable object, equal for equal numbers."""
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    if isinstance(value, slice):
        return "slice", value.start, value.stop
    if not _arrays.is_array(value):
        return value
    array = _arrays.to_numpy(value)
    return array.shape, array.dtype.name, array.tobytes()
