"""Arrays and tensors of every dtype, layout and byte order, with the values that they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from fuzz.draw import Draw

Floats = NDArray[np.float64]

NUMPY: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float64": np.float64,
}

#: Greatest values that are drawn: float16 ends at 65504.
GREATEST = {"float32": 3e38, "float16": 6e4, "bfloat16": 3e38, "float64": 1e300}

#: Layouts that NumPy has and torch has not.
NUMPY_LAYOUTS = ("reversed", "unaligned", "readonly")
LAYOUTS = ("plain", "plain", "transposed", "stepped", "columns", *NUMPY_LAYOUTS)


@dataclass(frozen=True)
class Format:
    """A dtype of NumPy or of torch.

    Attributes:
        name: the dtype.
        tensors: whether arrays are torch tensors.
    """

    name: str
    tensors: bool

    @staticmethod
    def drawn(draw: Draw, *, wide: bool = True) -> Format:
        """Draw a format; float64 is for tensors only, if wide."""
        name = draw.weighted({"float32": 6, "bfloat16": 3, "float16": 2, "float64": float(wide)})
        return Format(name, name == "float64" or draw.chance(0.3))

    @property
    def unit(self) -> float:
        """The rounding error of the arithmetic: float32, float64 for float64 tensors."""
        return 2.0**-53 if self.name == "float64" else 2.0**-24

    def array(self, draw: Draw, values: Floats) -> tuple[Any, Floats]:
        """Return an array of this format in a random layout, and its exact values."""
        limit = GREATEST[self.name]
        within = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
        stored = within.astype(NUMPY[self.name])
        layouts = LAYOUTS[: -len(NUMPY_LAYOUTS)] if self.tensors else LAYOUTS
        array = laid_out(stored, draw.one_of(layouts))
        exact = stored.astype(np.float64)
        return (tensor(array) if self.tensors else array), exact

    def whole(self, draw: Draw, values: NDArray[Any]) -> Any:
        """Return a mask or positions in this framework, in some integer dtype or byte order."""
        if self.tensors:
            dtypes: tuple[Any, ...] = (torch.int64, torch.int32)
            return torch.from_numpy(values.astype(np.int64)).to(draw.one_of(dtypes))
        dtype: Any = draw.one_of(("int64", "int32", ">i8", ">i4", "uint32"))
        return values.astype(dtype)


def laid_out(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return an array (batch, heads, length, D) with the same values in another layout."""
    result: NDArray[Any] = array.copy()
    if layout == "transposed":
        result = np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)
    elif layout == "stepped":
        result = np.repeat(array, 2, axis=2)[:, :, ::2]
    elif layout == "columns":
        result = np.repeat(array, 2, axis=3)[..., ::2]
    elif layout == "reversed":
        result = np.ascontiguousarray(array[:, :, ::-1])[:, :, ::-1]
    elif layout == "unaligned":
        memory = np.zeros(array.nbytes + 1, np.uint8)
        memory[1:] = np.frombuffer(array.tobytes(), np.uint8)
        result = memory[1:].view(array.dtype).reshape(array.shape)
    elif layout == "readonly":
        result.flags.writeable = False
    return result


def tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor on the memory of an array, bfloat16 too."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_float64(result: Any) -> Floats:
    """Return the values of an array or a tensor in float64."""
    if isinstance(result, torch.Tensor):
        return result.detach().to(torch.float64).numpy()
    return np.asarray(result).astype(np.float64)


def dtype_of(result: Any) -> str:
    """Return the name of a dtype, equal for NumPy and torch."""
    return str(result.dtype).removeprefix("torch.")
