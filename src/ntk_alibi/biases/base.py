"""The base class of all biases, and what a call asks of its argument `bias`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array, DTypeLike
from ntk_alibi._repr_html import ReprHtml
from ntk_alibi.biases.dense import dense_bias
from ntk_alibi.biases.kernel_bias import NO_BIAS, KernelBias
from ntk_alibi.biases.parameters import check_floating
from ntk_alibi.biases.slopes import checked_lengths
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

    Example: see `KernelBias`.
    """

    num_heads: int = field(init=False, repr=False)
    sides: str = field(init=False, repr=False)

    def define(self, **values: Any) -> None:
        """Set attributes in the constructor of a subclass, whose instances are frozen.

        Args:
            values: attributes by name. `num_heads` and `sides` have no defaults.
        """
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the bias in kernel form.

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
        rows = checked_lengths([keys] if lengths is None else lengths)
        if rows.max(initial=0) > keys:
            raise ValueError(f"lengths must be at most key_length {keys}, got {rows.max()}")
        wanted = getattr(out, "dtype", np.float32) if dtype is None else dtype
        of = None if out is None else "out"
        name = _checks.floating_dtype(wanted, _arrays.CORE_DTYPES, of)
        torch = _arrays.is_torch_dtype(dtype) or any(
            map(_arrays.is_tensor, (*self.parameters, lengths, out))
        )
        real = None
        if lengths is not None:
            real = (np.arange(keys) >= keys - rows[:, None]).view(np.uint8)
        shape = (self.rows if lengths is None else len(rows), self.num_heads, queries, keys)
        problem = Problem(shape, Mask(causal=self.sides == "causal"), real)
        bias = self.kernel_bias(problem).on(None).checked(problem)
        return dense_bias(bias, problem, name, out, torch=torch)

    def _values(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(_comparable(self._values()) == _comparable(other._values()))

    def __hash__(self) -> int:
        return hash((type(self), _comparable(self._values())))


def kernel_bias_of(bias: Any, problem: Problem, like: Any = None) -> KernelBias:
    """Return the `bias` argument of `attention` in kernel form, checked against the problem.

    Args:
        bias: None, an object with the method `kernel_bias`, or dense numbers.
        problem: the checked problem.
        like: a tensor of the call if autograd is to follow the bias, or None for constants.
    """
    if bias is None:
        return NO_BIAS
    make = getattr(bias, "kernel_bias", None)
    if make is not None and not isinstance(bias, type):
        if bias.num_heads != problem.shape[1] or problem.mask.sees_ahead:
            check_fitting(bias, problem.shape[1], causal=not problem.mask.sees_ahead)
        kernel = make(problem, like)
        if not isinstance(kernel, KernelBias):
            raise TypeError(f"kernel_bias must return a KernelBias, got {kernel!r} from {bias!r}")
        if kernel.core is not None and like is None:
            return kernel
    else:
        check_dense(bias)
        kernel = KernelBias(dense=bias)
    return kernel.on(like).checked(problem)


def check_fitting(bias: Any, heads: int, *, causal: bool | None = None) -> None:
    """Check that a bias object has query's heads and, if known, fits causal or other attention."""
    if bias.num_heads != heads:
        raise ValueError(f"bias must have query's {heads} heads, got {bias!r}")
    if causal is False and bias.sides == "causal":
        raise ValueError(f"causal must be True for a bias of causal sides, got {bias!r}")


def check_dense(bias: Any) -> None:
    """Check that a bias that is no object is a floating array or tensor."""
    if not _arrays.is_array(bias):
        is_scaling = hasattr(bias, "scale_exponents") and not isinstance(bias, type)
        advice = f": pass ALiBi(num_heads, {bias!r})" if is_scaling else ""
        raise TypeError(
            f"bias must be None, a bias object, an array or a tensor, got {bias!r}{advice}"
        )
    _checks.check_plain("bias", bias)
    check_floating("bias", bias.dtype)


def _comparable(value: Any) -> Any:
    """Return a hashable object, equal for equal numbers."""
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    if not _arrays.is_array(value):
        return value
    array = _arrays.to_numpy(value)
    return array.shape, array.dtype.name, array.tobytes()
