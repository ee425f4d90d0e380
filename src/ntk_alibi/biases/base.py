"""The base class of all biases, and checks of the argument `bias`."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array, DTypeLike
from ntk_alibi._backends import main_memory
from ntk_alibi._repr_png import picture
from ntk_alibi.biases.dense import dense_bias
from ntk_alibi.biases.kernel_bias import NO_BIAS, KernelBias
from ntk_alibi.biases.parameters import check_floating
from ntk_alibi.biases.slopes import checked_lengths
from ntk_alibi.masks import Mask, Problem

#: The attribute of a bias that keeps its hash.
_HASH = "_hash"


@dataclass(frozen=True, eq=False)
class BiasObject:
    """The base class of biases: subclasses implement `kernel_bias` and inherit the rest.

    A bias is a value: it is frozen, and compared and hashed by its attributes. Arrays among these
    are read-only copies. Tensors are the caller's tensors; they may require grad, and are compared
    by their values at the time of the comparison.

    Attributes:
        num_heads: the number of heads.
        sides: "causal" if the bias is for causal attention only.

    Example: see `KernelBias`.
    """

    num_heads: int = field(init=False, repr=False)
    sides: str = field(init=False, repr=False)
    #: What has the kernel form if that is the same for all problems and there are no parameters,
    #: hashed and compared by its values.
    constant: ClassVar[Any] = None

    def define(self, **values: Any) -> None:
        """Set attributes in a subclass's constructor, although instances are frozen.

        Args:
            values: attributes by name; `num_heads` and `sides` must be among them.
        """
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the bias in kernel form.

        Args:
            problem: shape, mask and positions of the call.
            like: None for a result of NumPy arrays, or a tensor of the call. With a tensor, the
                result may contain tensors, through which autograd reaches the parameters; NumPy
                arrays in it are constants.
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
    def per_token(self) -> bool:
        """Whether parameters have an entry per token."""
        return False

    @property
    def covered_distances(self) -> tuple[int, int] | None:
        """The first and the last distance that the bias covers; None for all distances."""
        return None

    @property
    def rows(self) -> int:
        """The number of batch rows that the bias is for; 1 for any number."""
        return 1

    def tensor(
        self,
        query_length: int,
        key_length: int,
        dtype: DTypeLike | None = None,
        lengths: Any = None,
        out: Array | None = None,
    ) -> Array:
        """Return the bias for all pairs of queries and keys, with the last query at the last key.

        Formula::

            out[b, h, i, j] = bias(i', j),  i' = key_length - query_length + i
            out[b, h, i, j] = -inf  for j > i' if sides == "causal"

        Args:
            query_length: Q >= 0.
            key_length: K >= 0.
            dtype: NumPy's or torch's float32 (default), bfloat16 or float16.
            lengths: for a dynamic scaling, the number of real tokens of each row, (batch,) integers
                <= key_length; the row's last token is the last key (left padding). By default one
                row of key_length tokens.
            out: a buffer with the result's framework, shape and dtype, which is filled and
                returned.

        Returns:
            The bias, (1 or batch, heads, Q, K): a tensor if dtype is torch's, or if a parameter,
            lengths or out is a tensor, else a NumPy array. Values are computed in float32, rounded
            to nearest even; distances are exact integers below 2^24.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: an argument is out of range, or a parameter requires grad (the result is a
                constant).
        """
        check_defined(self)
        queries = _checks.integer("query_length", query_length, minimum=0)
        keys = _checks.integer("key_length", key_length, minimum=0)
        rows = checked_lengths([keys] if lengths is None else lengths)
        if rows.max(initial=0) > keys:
            raise ValueError(f"lengths must be at most key_length {keys}, got {rows.max()}")
        result_dtype = getattr(out, "dtype", np.float32) if dtype is None else dtype
        array_name = None if out is None else "out"
        name = _checks.floating_dtype(result_dtype, _arrays.CORE_DTYPES, array_name)
        tensor = _arrays.first_tensor(*self.parameters, lengths, out)
        torch = tensor is not None or _arrays.is_torch_dtype(dtype)
        backend = main_memory(torch=torch)
        real = None
        if lengths is not None:
            real = (np.arange(keys) >= keys - rows[:, None]).view(np.uint8)
        shape = (self.rows if lengths is None else len(rows), self.num_heads, queries, keys)
        problem = Problem(shape, Mask(causal=self.sides == "causal"), real)
        bias = self.kernel_bias(problem).on(None).checked(problem)
        return dense_bias(bias, problem, name, out, backend)

    def _repr_png_(self) -> bytes | None:
        return picture("receptive_field", self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the hash, which is another one in another process."""
        return {name: value for name, value in vars(self).items() if name != _HASH}

    def _values(self) -> tuple[Any, ...]:
        return tuple([value for name, value in vars(self).items() if name != _HASH])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(_comparable(self._values()) == _comparable(other._values()))

    def __hash__(self) -> int:
        """Return the hash; it is kept where all arrays are those that cannot change."""
        kept: int | None = vars(self).get(_HASH)
        if kept is None:
            kept = hash((type(self), _comparable(self._values())))
            arrays = (*self.parameters, *filter(_arrays.is_array, self._values()))
            if all(isinstance(x, np.ndarray) and not x.flags.writeable for x in arrays):
                object.__setattr__(self, _HASH, kept)
        return kept


def to_kernel_bias(bias: Any, problem: Problem, like: Any = None) -> KernelBias:
    """Check the argument `bias` of `attention` against the problem and return it in kernel form.

    Args:
        bias: None, an object with the method `kernel_bias`, or a dense array or tensor.
        problem: the checked problem.
        like: a tensor of the call if autograd is to follow the bias, or None for constants.
    """
    if bias is None:
        return NO_BIAS
    make = getattr(bias, "kernel_bias", None)
    if make is not None and not isinstance(bias, type):
        heads, causal = problem.shape[1], problem.mask.causal
        if getattr(bias, "num_heads", None) != heads or not causal:
            check_fits(bias, heads, causal=causal, length=problem.shape[2])
        kernel = make(problem, like)
        if not isinstance(kernel, KernelBias):
            raise TypeError(
                "kernel_bias must return a KernelBias, got "
                f"{_checks.briefly(kernel)} from {_checks.briefly(bias)}"
            )
        if like is None and kernel.kept is not None:
            return kernel
    else:
        check_dense(bias)
        kernel = KernelBias(dense=bias)
    return kernel.on(like).checked(problem)


def check_fits(
    bias: Any, heads: int, *, causal: bool | None = None, length: int | None = None
) -> None:
    """Check that a bias object has query's heads and, unless None, sides that suit causal.

    Where `length`, the number of queries, is the bias's number of heads, the error says so.
    """
    check_defined(bias)
    if bias.num_heads != heads:
        got = f"{type(bias).__name__} with {bias.num_heads}"
        swapped = _checks.SWAPPED if bias.num_heads == length else ""
        raise ValueError(f"bias must have query's {heads} heads, got {got}{swapped}")
    if causal is False and bias.sides == "causal":
        raise ValueError(
            "bias must cover both sides (sides='symmetric' of ALiBi) with causal=False, got "
            f"{_checks.briefly(bias)}; causal=True hides all keys ahead, even those that mask shows"
        )


def check_defined(bias: Any) -> None:
    """Check that a bias object has the attributes that its constructor sets by `define`."""
    for name in ("num_heads", "sides"):
        if not hasattr(bias, name):
            raise TypeError(
                f"bias must have {name}, got {type(bias).__name__} without: call "
                "self.define(num_heads=..., sides='causal' or 'symmetric') in its __init__"
            )


def check_dense(bias: Any) -> None:
    """Check that a bias without `kernel_bias` is a floating array or tensor."""
    if not _arrays.is_array(bias):
        is_scaling = hasattr(bias, "scale_exponents") and not isinstance(bias, type)
        advice = f": pass ALiBi(num_heads, {_checks.briefly(bias)})" if is_scaling else ""
        if inspect.isroutine(bias) or isinstance(bias, functools.partial):
            advice = ": pass na.DistanceFunction(function, num_heads), a function of distance"
        raise TypeError(
            "bias must be None, a bias object, an array or a tensor, "
            f"got {_checks.briefly(bias)}{advice}"
        )
    _checks.check_plain("bias", bias)
    check_floating("bias", bias.dtype)


def _comparable(value: Any) -> Any:
    """Return a hashable object that is equal for equal values."""
    if isinstance(value, tuple):
        return type(value), *map(_comparable, value)
    if not _arrays.is_array(value):
        return type(value), value  # named tuples of two classes may be equal
    array = _arrays.to_numpy(value)
    return array.shape, array.dtype.name, array.tobytes()
