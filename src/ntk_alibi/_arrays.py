"""What NumPy arrays and torch tensors are: their types, dtypes and memory.

This module never imports torch: a tensor or a torch dtype can only arrive after the caller has
imported it. No module of the NumPy layer imports torch when it is loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _core

if TYPE_CHECKING:
    import torch

    Array: TypeAlias = NDArray[Any] | torch.Tensor
    ArrayT = TypeVar("ArrayT", NDArray[Any], torch.Tensor)
    DTypeLike: TypeAlias = np.typing.DTypeLike | torch.dtype
else:
    Array = ArrayT = Any
    DTypeLike = Any


def as_floats(array: Any, dtype: Any = np.float32) -> NDArray[Any]:
    """Return an array or a tensor as contiguous NumPy floats, copied only if necessary."""
    return np.require(to_numpy(array), dtype, ["C", "ALIGNED"])


#: The dtypes that the core writes, by the names that NumPy, ml_dtypes and torch share.
CORE_DTYPES = {
    "float32": _core.DType.float32,
    "bfloat16": _core.DType.bfloat16,
    "float16": _core.DType.float16,
}

#: Dtypes of attention in the compiled core, and in torch's operations.
FUSED_DTYPES = tuple(CORE_DTYPES)
ANY_DTYPES = (*FUSED_DTYPES, "float64")


def is_tensor(value: object) -> bool:
    """Return whether value is a torch tensor."""
    if value is None or isinstance(value, np.ndarray):  # faster than to ask torch
        return False
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def first_tensor(*values: object) -> Any:
    """Return the first torch tensor among values, or None."""
    return next(filter(is_tensor, values), None)


def is_array(value: object) -> bool:
    """Return whether value is a NumPy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def any_requires_grad(*values: Any) -> bool:
    """Return whether any of the values is a tensor that requires grad."""
    for value in values:  # noqa: SIM110 (any() of a generator takes longer)
        if getattr(value, "requires_grad", False):
            return True
    return False


#: Query, key and value as NumPy arrays over the same memory, bfloat16 tensors as 16-bit integers.
Memory: TypeAlias = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def find_memory(query: Any, key: Any, value: Any) -> Memory | None:
    """Return the memory of three arrays, or dense tensors in main memory, of one dtype; else None.

    It costs less than asking for layout and device.
    """
    torch: Any = sys.modules.get("torch")
    kind = type(query)
    supported = kind is np.ndarray or (torch is not None and kind is torch.Tensor)
    if not (supported and kind is type(key) is type(value)):
        return None
    dtype = query.dtype
    if not (dtype == key.dtype and dtype == value.dtype):
        return None
    if kind is np.ndarray:
        return query, key, value
    try:
        if dtype is torch.bfloat16:
            bits = torch.int16
            query, key, value = query.view(bits), key.view(bits), value.view(bits)
        return query.numpy(), key.numpy(), value.numpy()
    except (RuntimeError, TypeError):  # it is not dense, or elsewhere, requires grad or is negated
        return None


def has_shape(array: Any, *shapes: tuple[Any, ...]) -> bool:
    """Return whether an array has one of the shapes.

    Sizes are compared one by one: torch.compile's symbols equal integers, but tuples with symbols
    do not equal tuples of integers.
    """
    return any(_same_sizes(array.shape, shape) for shape in shapes)


def _same_sizes(sizes: Any, others: Any) -> bool:
    return len(sizes) == len(others) and all(a == b for a, b in zip(sizes, others, strict=True))


def wide_dtype(tensor: Any) -> str:
    """Return the dtype of a tensor's biases: "float64" for a float64 tensor, else "float32"."""
    return "float64" if dtype_name(tensor.dtype) == "float64" else "float32"


def is_torch_dtype(dtype: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(dtype, torch.dtype)


def dtype_name(dtype: Any) -> str:
    """Return the name of a NumPy or torch dtype: "float32", "bfloat16", "int64" ..."""
    if is_torch_dtype(dtype):
        return str(dtype).removeprefix("torch.")
    return _numpy_dtype_name(dtype)


@functools.lru_cache(maxsize=64)
def _numpy_dtype_name(dtype: Hashable) -> str:
    return "bfloat16" if dtype == "bfloat16" else np.dtype(cast(Any, dtype)).name


def to_numpy(value: Any) -> NDArray[Any]:
    """Convert any array, tensor or sequence to a NumPy array; bfloat16 tensors become float32."""
    if not is_tensor(value):
        return np.asarray(value)
    torch = sys.modules["torch"]
    if torch._C._are_functorch_transforms_active():
        inner = without_wrappers(value)
        if inner is not value and value.is_floating_point():
            raise ValueError("tensors that torch.func differentiates must not become constants")
        with torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack():
            return to_numpy(inner)
    tensor = value.detach().cpu()
    if dtype_name(tensor.dtype) == "bfloat16":
        tensor = tensor.float()
    parameter = torch.nn.Parameter
    if isinstance(value, parameter) or isinstance(value._base, parameter):
        tensor = tensor.clone()  # FSDP could not free memory that NumPy has seen
    return memory_of(tensor)


def memory_of(tensor: Any) -> NDArray[Any]:
    """Return the memory of a tensor as a NumPy array, of bfloat16 as 16-bit integers.

    It is a copy where a negation or a conjugation is pending, which torch keeps as a bit.
    """
    torch = sys.modules["torch"]
    plain = tensor.detach().resolve_conj().resolve_neg()
    bits: NDArray[Any] = (
        plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain
    ).numpy()
    return bits


def without_wrappers(tensor: Any) -> Any:
    """Return a tensor without the wrappers of torch.func's derivatives, which hide its memory."""
    functorch = sys.modules["torch"]._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor) and not functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor
