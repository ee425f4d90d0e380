"""What stands between bias objects and the kernels: a problem, and a bias in a form kernels take.

Kernels know slopes, a table over distance, running sums and plain numbers, never a method by name.
Arrays and tensors alike; kept apart because the bias objects, the fused attention and its torch
layer all speak of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array, DTypeLike
from ntk_alibi._repr_html import ReprHtml
from ntk_alibi.biases import checks
from ntk_alibi.masks import Problem


class KernelBias(NamedTuple):
    """A bias as the kernels take it; all None is none. Of arrays, or of tensors.

    Attributes:
        left, right: slopes of a linear bias, (1 or batch, heads, 1 or queries); +inf hides a side.
        table: (heads, distances), at index d - table_begin for distance d.
        sums: (1 or batch, heads, keys); the bias is that of the query minus that of the key, where
            the queries are the last keys.
        dense: broadcastable to (batch, heads, queries, keys).
        exempt: a query or a key at a position below this has no slope.
        first: (heads,), subtracted from what is exempt, but for a token with itself; or None.
    """

    left: Any = None
    right: Any = None
    table: Any = None
    table_begin: int = 0
    sums: Any = None
    dense: Any = None
    exempt: int = 0
    first: Any = None


@dataclass(frozen=True, eq=False)
class BiasObject(ReprHtml):
    """What all biases share: equal and hashed by their numbers, and by them alone.

    Subclasses are frozen dataclasses with eq=False. Arrays among their fields are their own and
    read-only; tensors are the caller's, may require grad, and count by what they hold at the time.

    Attributes:
        num_heads: heads it is for.
        sides: "causal" where it is for causal attention only.
    """

    num_heads: int = field(init=False, repr=False)
    sides: str = field(init=False, repr=False)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The arrays and tensors it is made of."""
        return tuple(filter(_arrays.is_array, self._values()))

    def kernel_bias(self, problem: Problem) -> KernelBias:
        """It as NumPy numbers for a problem."""
        raise NotImplementedError

    def tensor(
        self,
        query_length: int,
        key_length: int,
        dtype: DTypeLike | None = None,
        lengths: Any = None,
        out: Array | None = None,
    ) -> Array:
        """The dense bias, the last query aligned with the last key.

        out[b, h, i, j] = bias(i', j),  i' = key_length - query_length + i;  -inf for j > i' if
        sides == "causal"

        Args:
            query_length: Q >= 0.
            key_length: K >= 0.
            dtype: NumPy's or torch's float32 (default), bfloat16 or float16.
            lengths: (batch,), the numbers of real tokens of rows; only dynamic scalings ask.
            out: a buffer for the result, of its framework, shape and dtype; filled and returned.

        Returns:
            (1 or batch, heads, Q, K): a tensor if dtype is torch's, or a parameter, lengths or out
            is one.

        Raises:
            TypeError, ValueError: an argument is wrong; a parameter requires grad (a dense bias is
                a constant).
        """
        queries = _checks.integer("query_length", query_length, minimum=0)
        keys = _checks.integer("key_length", key_length, minimum=0)
        checks.row_lengths(lengths, keys)
        name = result_dtype(dtype, out)
        torch = _arrays.is_torch_dtype(dtype) or any(
            map(_arrays.is_tensor, (*self.parameters, lengths, out))
        )
        values = self._all_pairs(queries, keys)
        if out is not None:
            _checks.out(out, values.shape, name, torch=torch)
        empty = _arrays.empty(values.shape, name, torch=torch) if out is None else out
        return _arrays.filled(empty, values)

    def _all_pairs(self, query_length: int, key_length: int) -> NDArray[np.float32]:
        """The numbers of `tensor`."""
        raise NotImplementedError

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, x.name) for x in fields(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BiasObject) or type(other) is not type(self):
            return NotImplemented
        return bool(_comparable(self._values()) == _comparable(other._values()))

    def __hash__(self) -> int:
        return hash((type(self), _comparable(self._values())))


def _comparable(value: Any) -> Any:
    """Something hashable that equals for equal values."""
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    if not _arrays.is_array(value):
        return value
    array = _arrays.to_numpy(value)
    return array.shape, array.dtype.name, array.tobytes()


def result_dtype(dtype: Any, out: Any) -> str:
    """The name of the dtype of a dense bias: what is asked for, out's, or float32."""
    if dtype is None:
        dtype = np.float32 if out is None else out.dtype
    return _checks.floating_dtype(dtype, _arrays.CORE_DTYPES)
