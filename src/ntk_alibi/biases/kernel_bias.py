"""The kernel form of a bias: slopes, a table, prefix sums or a dense array.

Kernels take this form, and no bias classes. Code that splits a call into chunks of queries or
runs of keys splits this form, not the bias object.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi._backends import NUMPY, backend_of, readable
from ntk_alibi._torch_state import has_values, is_tracing
from ntk_alibi.biases.parameters import parameter, to_tensor
from ntk_alibi.masks import Cut, Problem

#: The fields with slopes.
SLOPES = ("left", "right")

#: The fields with arrays or tensors.
ARRAYS = (*SLOPES, "first", "table", "sums", "dense")

#: The axes of arrays that `attention` does not broadcast.
AXES = {**dict.fromkeys(SLOPES, "(1 or batch, heads, 1 or queries)"), "table": "(heads, distances)"}


class KernelBias(NamedTuple):
    """A bias in kernel form: exactly one of slopes, table, sums and dense, or none for no bias.

    Formula, with d = position(i) - position(j)::

        slopes: bias(i, j) = -left_i d for d > 0,  right_i d for d < 0,  0 for d = 0
        table:  bias(i, j) = table[d - table_begin]
        sums:   bias(i, j) = sums[K - Q + i] - sums[j]
        dense:  bias(i, j) = dense[i, j]

    Attributes:
        left, right: slopes (1 or batch, heads, 1 or queries); +inf hides a side. This and the
            other arrays may be tensors, which autograd can follow.
        table: (heads, distances), whose first distance is table_begin; -inf hides keys.
        sums: prefix sums (1 or batch, heads, keys), where the queries are the last keys.
        dense: an array that broadcasts to (batch, heads, queries, keys); -inf hides keys.
        exempt: tokens at positions below this have no slope, as queries and as keys.
        first: (heads,), subtracted from the scores of exempt tokens with other tokens, or None.
        core: what `with_core` keeps, the core's object and the values that it was made of, or None.

    Raises:
        TypeError, ValueError: in `attention`, the bias does not suit the call.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> from ntk_alibi.biases import BiasObject, KernelBias
        >>> class PerKey(BiasObject):
        ...     def __init__(self, values):
        ...         self.define(values=values, num_heads=len(values), sides="symmetric")
        ...     def kernel_bias(self, problem, like=None):
        ...         return KernelBias(dense=self.values[None, :, None])
        >>> PerKey(np.array([[1.0, 2.0, 4.0]])).tensor(2, 3)[0, 0]
        array([[1., 2., 4.],
               [1., 2., 4.]], dtype=float32)

        ALiBi's slopes, for keys behind and ahead: `slopes = na.alibi_slopes(8)[None, :, None]` and
        `KernelBias(left=slopes, right=slopes)`.

    Source: this package.
    """

    left: Any = None
    right: Any = None
    table: Any = None
    table_begin: int = 0
    sums: Any = None
    dense: Any = None
    exempt: int = 0
    first: Any = None
    core: tuple[_core.Bias, tuple[Any, ...]] | None = None

    def with_core(self) -> KernelBias:
        """Return this bias of NumPy arrays with the core's object, which is made once."""
        return self._replace(core=(self.in_core(), self[:-1]))

    @property
    def kept(self) -> _core.Bias | None:
        """The core's object if it was made of these very values, or None."""
        made = self.core
        return None if made is None or not all(map(operator.is_, made[1], self)) else made[0]

    @property
    def slopes(self) -> dict[str, Any]:
        """The slopes that are not None, by field."""
        named = {name: getattr(self, name) for name in SLOPES}
        return {name: side for name, side in named.items() if side is not None}

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays and tensors that are not None, by field."""
        named = {name: getattr(self, name) for name in ARRAYS}
        return {name: array for name, array in named.items() if array is not None}

    def mapped(self, convert: Callable[[str, Any], Any]) -> KernelBias:
        """Return the bias with each array replaced by convert(field, array)."""
        converted = {name: convert(name, array) for name, array in self.arrays.items()}
        return self._replace(**converted)

    def on(self, like: Any) -> KernelBias:
        """Return the bias in like's framework, on its device; NumPy arrays if like is None.

        Slopes and tables are float32, float64 for float64 tensors; prefix sums are float64.

        Raises:
            ValueError: a tensor that requires grad would become a constant, or a finite value in
                main memory is beyond float32's range, where it would hide keys.
        """
        constant = backend_of(like) is NUMPY
        if constant and self.kept is not None:
            return self

        def convert(name: str, x: Any) -> Any:
            if name != "dense":
                return parameter(x, like, name="bias", widest=name == "sums")
            if constant:
                return _checks.constant("bias", x)
            return to_tensor("bias", x, like, None)

        return self.mapped(convert)

    def checked(self, problem: Problem) -> KernelBias:
        """Check the bias against a problem and return it.

        Raises:
            TypeError, ValueError: it does not suit the problem, or contains several kinds of bias.
        """
        if self.kept is not None:
            return self
        names = ("left", "table", "sums", "dense")
        kinds = [name for name in names if getattr(self, name) is not None]
        if len(kinds) > 1 or tuple(self.slopes) not in ((), SLOPES):
            given = [*self.slopes, *(kind for kind in kinds if kind not in SLOPES)]
            raise ValueError(
                "kernel_bias must give one kind of bias, slopes as left and right, got "
                f"{' and '.join(given)}"
            )
        for name, array in self.arrays.items():
            if array.ndim != AXES.get(name, "," * (array.ndim - 1)).count(",") + 1:
                raise ValueError(f"{name} must have shape {AXES[name]}, got {tuple(array.shape)}")
        if self.left is not None:
            self._check_slopes(problem.shape)
        if self.table is not None:
            _check_heads("table", self.table.shape[0], problem.shape)
            if not (is_tracing() or problem.traced):  # the operator checks what is traced
                check_covered(self.table_begin, int(self.table.shape[1]), problem.distances())
        if self.sums is not None:
            self._check_sums(problem)
        if self.dense is not None:
            shape = tuple(self.dense.shape)
            axes = zip(reversed(shape), reversed(problem.shape), strict=False)
            if len(shape) > 4 or any(size != 1 and size != whole for size, whole in axes):
                swapped = len(shape) > 1 and shape[-2:] == (problem.shape[1],) * 2
                raise ValueError(
                    f"bias must be broadcastable to {problem.shape}, got {shape}"
                    f"{_checks.SWAPPED if swapped else ''}"
                )
        return self

    def _check_slopes(self, shape: tuple[int, ...]) -> None:
        batch, _, queries, _ = shape
        left, right = self.left, self.right
        if left.shape[0] != right.shape[0] and left.shape[0] != 1 and right.shape[0] != 1:
            raise ValueError(
                f"slopes must have one batch size, got {left.shape[0]} on the left and "
                f"{right.shape[0]} on the right"
            )
        for side in (left, right):
            if side.shape[2] != 1 and side.shape[2] != queries:
                raise ValueError(f"slopes must be given for {queries} queries, got {side.shape[2]}")
            _check_heads("slopes", side.shape[1], shape)
            if side.shape[0] != 1 and side.shape[0] != batch:
                raise ValueError(
                    f"slopes must be for 1 row or the batch of {batch}, got {side.shape[0]}"
                )

    def _check_sums(self, problem: Problem) -> None:
        batch, heads, queries, keys = problem.shape
        if queries > keys:
            raise ValueError(
                f"query must be at most as long as key ({keys}) with forget gates, got {queries}"
            )
        if problem.explicit_positions:
            raise ValueError(
                "query_positions must be None and align 'end' with forget gates, whose queries are "
                "the last keys"
            )
        shape = tuple(self.sums.shape)
        if not _arrays.has_shape(self.sums, (1, heads, keys), (batch, heads, keys)):
            raise ValueError(f"sums must have shape ({batch}, {heads}, {keys}), got {shape}")
        if problem.segment_ids is None or not has_values(*problem.segment_ids):
            return
        for segment in problem.segments():
            queries, keys = (x.stop - x.start for x in (segment.queries, segment.keys))
            if queries > keys:
                raise ValueError(
                    "query_segment_ids must not give a segment more queries than keys with forget "
                    f"gates, got {queries} and {keys}"
                )

    def cut(self, cut: Cut, shape: tuple[int, ...]) -> KernelBias:
        """Return the bias of a part of a problem.

        Prefix sums become dense unless the part's queries are its last keys.

        Args:
            cut: the part.
            shape: (batch, heads, queries, keys) of the whole problem.
        """
        parts = {name: cut.of(side, "BhQ") for name, side in self.slopes.items()}
        parts |= {name: cut.of(getattr(self, name), "h") for name in ("table", "first")}
        if self.dense is not None:
            parts["dense"] = cut.of(self.dense, "BHQK"[4 - self.dense.ndim :])
        if self.sums is not None:
            parts["sums"] = cut.of(self.sums, "Bhk")
            if not cut.alone and not cut.keeps_alignment(shape):
                of_queries = cut.of(self.sums[..., shape[3] - shape[2] :], "Bhq")
                parts["dense"] = of_queries[..., None] - parts["sums"][..., None, :]
                parts["sums"] = None
        same = all(part is getattr(self, name) for name, part in parts.items())
        return self if same else self._replace(**parts)

    def values(self, queries: Any, keys: Any) -> tuple[Any, Any]:
        """Return the bias of all pairs, 0 at hidden keys, and which keys it hides.

        Args:
            queries: positions (1 or batch, queries), int64, in the bias's framework.
            keys: positions (1 or batch, keys).

        Returns:
            The bias and booleans, which broadcast to (batch, heads, queries, keys).
        """
        xp = backend_of(queries).xp
        distance = (queries[..., :, None] - keys[..., None, :])[:, None]
        if self.left is not None:
            return self._linear_values(queries, keys, distance)
        dense = self.dense
        if self.sums is not None:
            rows = self.sums[..., keys.shape[1] - queries.shape[1] :, None]
            dense = rows - self.sums[..., None, :]
        if self.table is not None:
            size = self.table.shape[1]
            if size == 0:  # no key is visible
                return 0.0 * distance, distance != distance
            column = distance[:, 0] - self.table_begin
            index = xp.clip(column, 0, size - 1)
            dense = self.table[:, index].swapaxes(0, 1)
            if not (has_values(queries) and has_values(keys)):  # else `checked` compared them
                dense = xp.where((column == index)[:, None], dense, math.nan)
        if dense is None:
            return 0.0 * distance[:1, :, :1, :1], (distance != distance)[:1, :, :1, :1]
        hidden = xp.isneginf(dense)
        return xp.where(hidden, 0.0, dense), hidden

    def pairs(self, problem: Problem, like: Any) -> tuple[Any, Any]:
        """Return the bias of all pairs of a problem, 0 at keys it hides, and which keys are seen.

        Both are tensors on like's device, which broadcast to (batch, heads, queries, keys).
        """
        values, hidden = self.values(*problem.positions(like))
        return values, problem.visible_pairs(like) & ~hidden

    def _linear_values(self, queries: Any, keys: Any, distance: Any) -> tuple[Any, Any]:
        xp = backend_of(queries).xp
        behind, ahead = distance > 0, distance < 0
        none_left, none_right = (xp.isinf(side)[..., None] for side in (self.left, self.right))
        left = xp.where(none_left, 0.0, self.left[..., None])
        right = xp.where(none_right, 0.0, self.right[..., None])
        values = xp.where(behind, -left, right) * distance
        if self.exempt:
            exempt = queries[..., :, None] < self.exempt
            exempt = (exempt | (keys[..., None, :] < self.exempt))[:, None]
            first: Any = 0.0 if self.first is None else -self.first[:, None, None]
            others = xp.where(distance == 0, 0.0, first)
            values = xp.where(exempt, others, values)
        return values, (none_left & behind) | (none_right & ahead)

    def in_core(self) -> _core.Bias:
        """Return a bias of NumPy arrays for the core, which ignores `exempt` and `first`."""
        if (kept := self.kept) is not None:
            return kept
        dense = self.dense
        if dense is not None:
            dense = np.require(_checks.as_float32("bias", dense), np.float32, ["ALIGNED"])
            dense = dense[(None,) * (4 - dense.ndim)]
        given = self.left, self.right, self.table, self.sums
        left, right, table, sums = (None if x is None else readable(x) for x in given)
        return _core.Bias(left, right, table, self.table_begin, sums, dense)


def check_covered(begin: int, size: int, seen: tuple[int, int]) -> None:
    """Check that a table covers all visible distances."""
    if seen[0] <= seen[1] and not begin <= seen[0] <= seen[1] < begin + size:
        raise ValueError(
            f"table must cover the distances {seen[0]} to {seen[1]} that are seen, got {size} from "
            f"{begin} on"
        )


def _check_heads(name: str, heads: int, shape: tuple[int, ...]) -> None:
    if heads != shape[1]:
        raise ValueError(f"{name} must have the bias's {shape[1]} heads, got {heads}")


def _of_known_fields(make: Any) -> Any:
    """Return the constructor with an error for unknown fields that names the known ones."""

    def new(cls: type[KernelBias], *values: Any, **fields: Any) -> KernelBias:
        for name in fields.keys() - cls._fields:
            instead = "left=slopes, right=slopes" if name == "slopes" else ", ".join(cls._fields)
            raise TypeError(f"{name} must not be given to KernelBias: write {instead}")
        made: KernelBias = make(cls, *values, **fields)
        return made

    return new


KernelBias.__new__ = _of_known_fields(KernelBias.__new__)  # type: ignore[method-assign]

#: No bias.
NO_BIAS = KernelBias().with_core()
