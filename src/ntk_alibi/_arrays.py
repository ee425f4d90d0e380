"""One set of functions for NumPy arrays and torch tensors.

This module never imports torch: a tensor or a torch dtype can only arrive after the caller has
imported it. No module of the NumPy layer imports torch when it is loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

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


def readable(array: Any) -> NDArray[Any]:
    """Return an array's memory, or a copy if it is not aligned or its rows have gaps."""
    memory = storage(array)
    unit = memory.strides[-1] == memory.itemsize or memory.shape[-1] <= 1
    return memory if unit and memory.flags.aligned else memory.copy()


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


def is_array(value: object) -> bool:
    """Return whether value is a NumPy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def in_autocast_dtype(*tensors: Any) -> tuple[Any, ...]:
    """Convert tensors of one device to the dtype of its autocast, if that is on."""
    torch = sys.modules["torch"]
    device = tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)
    return tensors


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context that switches autocast off for a device type."""
    torch = sys.modules["torch"]
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    context: AbstractContextManager[Any] = torch.autocast(device, enabled=False)
    return context


def any_requires_grad(*values: Any) -> bool:
    """Return whether any of the values is a tensor that requires grad."""
    for value in values:  # noqa: SIM110 (any() of a generator takes longer)
        if getattr(value, "requires_grad", False):
            return True
    return False


class CallMemory(NamedTuple):
    """Memory of a call as NumPy arrays, bfloat16 tensors as 16-bit integers.

    Attributes:
        query, key, value: the inputs, without a copy.
        written: memory of a new output.
        output: the same as an array or tensor like query.
    """

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    written: NDArray[Any]
    output: Array


def find_memory(query: Any, key: Any, value: Any) -> CallMemory | None:
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
        output = np.empty(query.shape, dtype)
        return CallMemory(query, key, value, output, output)
    half = dtype is torch.bfloat16
    try:
        if half:
            bits = torch.int16
            query, key, value = query.view(bits), key.view(bits), value.view(bits)
        memory = query.numpy(), key.numpy(), value.numpy()
    except (RuntimeError, TypeError):  # it is not dense, or elsewhere, or requires grad
        return None
    written = np.empty(memory[0].shape, memory[0].dtype)
    made = torch.from_numpy(written)
    return CallMemory(*memory, written, made.view(dtype) if half else made)


def is_in_main_memory(example: Any) -> bool:
    """Return whether an array, a tensor or None is in main memory."""
    return not is_tensor(example) or bool(example.is_cpu)


def contiguous(array: Any) -> Any:
    """Return the array with contiguous memory, copied only if necessary."""
    return array.contiguous() if is_tensor(array) else np.ascontiguousarray(array)


def namespace(example: Any) -> Any:
    """Return the module of functions for the example: torch for a tensor, else NumPy."""
    return sys.modules["torch"] if is_tensor(example) else np


def wide_dtype(tensor: Any) -> str:
    """Return the dtype of a tensor's biases: "float64" for a float64 tensor, else "float32"."""
    return "float64" if dtype_name(tensor.dtype) == "float64" else "float32"


def as_tensor(value: Any, like: Any, dtype: str | None) -> Any:
    """Return an array or a tensor as a tensor on like's device; dtype None keeps its dtype."""
    torch = sys.modules["torch"]
    torch_dtype = None if dtype is None else getattr(torch, dtype)
    if is_tensor(value):
        return value.to(like.device, value.dtype if torch_dtype is None else torch_dtype)
    # A tensor must not share read-only memory. Arrays that Dynamo traces are tensors already.
    shared = torch.compiler.is_dynamo_compiling() or value.flags.writeable
    made = torch.as_tensor if shared else torch.tensor
    return made(value, dtype=torch_dtype, device=like.device)


def float64(value: Any, example: Any) -> Any:
    """Convert an array to float64, in the framework and on the device of example."""
    if not is_tensor(example):
        return np.asarray(value, np.float64)
    return as_tensor(value, example, "float64")


def boolean(value: Any, example: Any) -> Any:
    """Convert an array to booleans, in the framework and on the device of example."""
    if is_tensor(example):
        return sys.modules["torch"].as_tensor(value, device=example.device).bool()
    return to_numpy(value).astype(np.bool_)


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


def empty_pair(example: Any, memory: Any = None) -> tuple[Array, NDArray[Any]]:
    """Return an uninitialised array like the example, and the same memory as a NumPy array.

    `memory` is the example's storage, if the caller has it.
    """
    like = storage(example) if memory is None else memory
    written = np.empty(like.shape, like.dtype)
    if isinstance(example, np.ndarray):
        return written, written
    torch = sys.modules["torch"]
    made = torch.from_numpy(written)
    return made.view(torch.bfloat16) if example.dtype is torch.bfloat16 else made, written


def storage(array: Any) -> NDArray[Any]:
    """Return a floating array's memory as a NumPy array; a bfloat16 tensor's as 16-bit integers."""
    if isinstance(array, np.ndarray):
        return array
    torch = sys.modules["torch"]
    bits = array.detach().view(torch.int16) if array.dtype is torch.bfloat16 else array
    memory: NDArray[Any]
    try:
        memory = bits.numpy()
    except RuntimeError:  # it requires grad, or its conjugation or negation is still pending
        memory = bits.detach().resolve_conj().resolve_neg().numpy()
    return memory


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
    return tensor.numpy()  # type: ignore[no-any-return]


def without_wrappers(tensor: Any) -> Any:
    """Return a tensor without the wrappers of torch.func's derivatives, which hide its memory."""
    functorch = sys.modules["torch"]._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor) and not functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def to_framework_of(array: NDArray[Any], example: Any) -> Array:
    """Convert the array to a tensor on example's device if example is a tensor."""
    if not is_tensor(example) or is_tensor(array):
        return array
    tensor: Array = sys.modules["torch"].from_numpy(array).to(example.device)
    return tensor


def to_dtype(array: Any, dtype: Any) -> Any:
    """Round an array to a dtype of its framework."""
    if is_tensor(array):
        return array.to(dtype)
    with np.errstate(over="ignore"):  # beyond float16's range is infinity, as in torch
        return array.astype(dtype, copy=False)


def detached(array: Any) -> Any:
    return array.detach() if is_tensor(array) else array


def to_float64(array: Any) -> Any:
    """Convert an array to float64; differentiable."""
    return array.double() if is_tensor(array) else array.astype(np.float64)


def promote_to_float32(array: Any) -> Any:
    """Convert arrays and quantized rows to float32, but leave float64 arrays; differentiable."""
    if hasattr(array, "dequantized"):
        return array.dequantized()
    return array if dtype_name(array.dtype) == "float64" else to_float32(array)


def to_float32(array: Any) -> Any:
    """Convert an array to float32; differentiable."""
    return array.float() if is_tensor(array) else array.astype(np.float32, copy=False)


def without_warnings(example: Any) -> AbstractContextManager[Any]:
    """Return a context without NumPy's warnings about infinity and NaN in masked entries."""
    if is_tensor(example):
        return nullcontext()
    return np.errstate(invalid="ignore", over="ignore", under="ignore")


def arange(length: int, example: Any) -> Any:
    """Return 0 .. length - 1 as int64 in example's framework, on its device."""
    if is_tensor(example):
        return sys.modules["torch"].arange(length, device=example.device)
    return np.arange(length)


def rows_of_integers(value: Any, length: int, example: Any) -> Any:
    """Return integers (1 or batch, length) as int64; 0 .. length - 1 for None."""
    if value is None:
        return arange(length, example)[None]
    if is_tensor(example):
        rows = sys.modules["torch"].as_tensor(value, device=example.device).long()
    else:
        rows = to_numpy(value).astype(np.int64)
    return rows if rows.ndim == 2 else rows[None]
