"""NumPy and torch behind one interface: a call takes the backend of its arrays once.

This module never imports torch: a tensor can only arrive after the caller has imported it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _installed
from ntk_alibi._arrays import Array, dtype_name, is_tensor, memory_of, to_numpy


class NumpyBackend:
    """NumPy arrays.

    Attributes:
        kind: what messages call an array.
        xp: the module of functions, of which callers use those that NumPy and torch share.
        in_main_memory: whether arrays are in main memory.
    """

    kind = "NumPy array"
    xp: Any = np
    in_main_memory = True

    def holds(self, value: object) -> bool:
        """Return whether value is an array of this framework, on any device."""
        return isinstance(value, np.ndarray)

    def convert(self, value: Any, dtype: str | None = None) -> Any:
        """Convert an array of any framework to this one; dtype None keeps its dtype."""
        return np.asarray(to_numpy(value), dtype)

    def cast(self, array: Any, dtype: Any) -> Any:
        """Round an array to a dtype, of this framework or by name; differentiable."""
        with np.errstate(over="ignore"):  # beyond float16's range is infinity, as in torch
            return array.astype(_numpy_dtype(dtype), copy=False)

    def arange(self, length: int) -> Any:
        """Return 0 .. length - 1 as int64."""
        return np.arange(length, dtype=np.int64)  # NumPy 1's own is int32 on Windows

    def contiguous(self, array: Any) -> Any:
        """Return the array with contiguous memory, copied only if necessary."""
        return np.ascontiguousarray(array)

    def detached(self, array: Any) -> Any:
        """Return the array without its history for autograd."""
        return array

    def running_maximum(self, array: Any) -> Any:
        """Return the greatest entry so far along the last axis."""
        return np.maximum.accumulate(array, axis=-1)

    def counts_below(self, values: Any, bounds: list[Any]) -> list[Any]:
        """Count the values of each row, (1 or rows, n), below each bound, (rows, m)."""
        ordered = np.broadcast_to(np.sort(values), (len(bounds[0]), values.shape[1]))
        counts = [np.zeros(x.shape, np.int64) for x in bounds]
        for bound, count in zip(bounds, counts, strict=True):
            for row, least in enumerate(bound):
                count[row] = np.searchsorted(ordered[row], least)
        return counts

    def storage(self, array: Any) -> NDArray[Any]:
        """Return a floating array's memory for the core; torch's bfloat16 as 16-bit integers."""
        memory: NDArray[Any] = array
        return memory

    def on_memory(self, memory: NDArray[Any], dtype: str) -> Any:
        """Return an array of a dtype that shares memory."""
        return memory.view(_numpy_dtype(dtype))

    def can_write(self, array: Any) -> bool:
        """Return whether the core may write into an array's memory."""
        return bool(array.flags.carray)  # contiguous, aligned and writable

    def without_warnings(self) -> AbstractContextManager[Any]:
        """Return a context without NumPy's warnings about infinity and NaN in masked entries."""
        return np.errstate(invalid="ignore", over="ignore", under="ignore")


class TorchBackend:
    """The same for torch tensors on a device."""

    kind = "torch tensor"

    def __init__(self, device: Any) -> None:
        self.device = device

    @property
    def xp(self) -> Any:
        return sys.modules["torch"]

    @property
    def in_main_memory(self) -> bool:
        return bool(self.device.type == "cpu")

    def holds(self, value: object) -> bool:
        return is_tensor(value)

    def convert(self, value: Any, dtype: str | None = None) -> Any:
        torch = self.xp
        torch_dtype = None if dtype is None else getattr(torch, dtype)
        if is_tensor(value):
            return value.to(self.device, value.dtype if torch_dtype is None else torch_dtype)
        # A tensor must not share read-only memory. Arrays that Dynamo traces are tensors already.
        shared = torch.compiler.is_dynamo_compiling() or value.flags.writeable
        convert = torch.as_tensor if shared else torch.tensor
        return convert(value, dtype=torch_dtype, device=self.device)

    def cast(self, array: Any, dtype: Any) -> Any:
        return array.to(getattr(self.xp, dtype) if isinstance(dtype, str) else dtype)

    def arange(self, length: int) -> Any:
        return self.xp.arange(length, device=self.device)

    def contiguous(self, array: Any) -> Any:
        return array.contiguous()

    def detached(self, array: Any) -> Any:
        return array.detach()

    def running_maximum(self, array: Any) -> Any:
        return array.cummax(-1).values

    def counts_below(self, values: Any, bounds: list[Any]) -> list[Any]:
        ordered = self.xp.sort(values).values.expand(len(bounds[0]), -1).contiguous()
        return [self.xp.searchsorted(ordered, bound.contiguous()) for bound in bounds]

    def storage(self, array: Any) -> NDArray[Any]:
        return memory_of(array)

    def on_memory(self, memory: NDArray[Any], dtype: str) -> Any:
        tensor = self.xp.from_numpy(memory)
        return tensor.view(self.xp.bfloat16) if dtype == "bfloat16" else tensor

    def can_write(self, array: Any) -> bool:
        return (
            array.is_cpu
            and array.is_contiguous()
            and not array.requires_grad
            and not array.is_neg()
        )

    def without_warnings(self) -> AbstractContextManager[Any]:
        return nullcontext()


Backend: TypeAlias = NumpyBackend | TorchBackend

NUMPY = NumpyBackend()


def backend_of(example: Any) -> Backend:
    """Return the backend of an example: of a tensor's device, else NumPy's."""
    return TorchBackend(example.device) if is_tensor(example) else NUMPY


def main_memory(*, torch: bool) -> Backend:
    """Return the backend of new arrays in main memory."""
    return TorchBackend(sys.modules["torch"].device("cpu")) if torch else NUMPY


def empty_pair(example: Any) -> tuple[Array, NDArray[Any]]:
    """Return an uninitialised array like the example, and the same memory as a NumPy array."""
    backend = backend_of(example)
    like = backend.storage(example)
    written = np.empty(like.shape, like.dtype)
    return backend.on_memory(written, dtype_name(example.dtype)), written


def readable(array: Any) -> NDArray[Any]:
    """Return an array's memory, or a copy if it is not aligned or its rows have gaps."""
    memory = backend_of(array).storage(array)
    unit = memory.strides[-1] == memory.itemsize or memory.shape[-1] <= 1
    return memory if unit and memory.flags.aligned else memory.copy()


def _numpy_dtype(dtype: Any) -> Any:
    if not (isinstance(dtype, str) and dtype == "bfloat16"):
        return dtype
    with _installed.needed_by("a bfloat16 NumPy array"):
        import ml_dtypes
    return ml_dtypes.bfloat16


def rows_of_integers(backend: Backend, value: Any, length: int) -> Any:
    """Return integers (1 or batch, length) as int64; 0 .. length - 1 for None."""
    rows = backend.arange(length) if value is None else backend.convert(value, "int64")
    return rows if rows.ndim == 2 else rows[None]


def promote_to_float32(array: Any) -> Any:
    """Convert arrays and quantized rows to float32, but leave float64 arrays; differentiable."""
    if hasattr(array, "dequantized"):
        return array.dequantized()
    if dtype_name(array.dtype) == "float64":
        return array
    return backend_of(array).cast(array, "float32")
