"""Keys and values in eight bits a number, with a scale for each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array, DTypeLike

#: The greatest magnitude of a quantized number.
GREATEST = 127


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedRows:
    """Keys or values as int8 numbers with a float32 scale for each token and head.

    Formula::

        x[b, h, t, d] = numbers[b, h, t, d] scales[b, h, t]

    `attention` takes a pair of them as key and value, of a query in float32, bfloat16 or float16,
    and computes with exactly these products. They need (D + 4) / 4 D of the memory of float32 rows
    of D numbers: 0.27 for D = 64. With rotary, `attention` makes float32 copies of them.

    Attributes:
        numbers: int8 (batch, heads, tokens, head_dim), array or tensor.
        scales: float32 (batch, heads, tokens). A row whose scale is NaN is NaN.

    Raises:
        TypeError, ValueError: numbers or scales have another dtype or shape, or are not of one
            framework and device. `attention` refuses a pair of them where torch records or traces.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 8, 5, 16), np.float32)
        >>> rows = na.QuantizedRows.of(key)
        >>> bool(np.abs(rows.dequantized() - key).max() <= key.max() / 253)
        True
        >>> na.attention(query, rows, na.QuantizedRows.of(value), na.ALiBi(8)).shape
        (1, 8, 5, 16)
    """

    numbers: Any
    scales: Any

    def __post_init__(self) -> None:
        numbers, scales = self.numbers, self.scales
        _checks.attention_input("numbers", numbers)
        if not _arrays.is_array(scales) or _arrays.is_tensor(scales) != _arrays.is_tensor(numbers):
            raise TypeError(f"scales must be of numbers' framework, got {type(scales).__name__}")
        _checks.check_plain("scales", scales)
        for name, array, dtype in (("numbers", numbers, "int8"), ("scales", scales, "float32")):
            native = getattr(array.dtype, "isnative", True)
            if _arrays.dtype_name(array.dtype) != dtype or not native:
                raise TypeError(f"{name} must be of native {dtype}, got {array.dtype}")
        shape = tuple(numbers.shape[:3])
        if tuple(scales.shape) != shape:
            raise ValueError(f"scales must have shape {shape}, got {tuple(scales.shape)}")
        if _arrays.is_tensor(numbers) and numbers.device != scales.device:
            raise ValueError(f"scales must be on numbers' {numbers.device}, got {scales.device}")

    @staticmethod
    def of(x: Array) -> QuantizedRows:
        """Return x rounded to the nearest multiples of a scale for each row.

        Formula::

            scale = max_d |x_d| / 127,   |x_d - numbers_d scale| <= scale / 2

        up to float32 rounding, for rows whose greatest magnitude is at least 1.5e-36; in smaller
        rows the error is at most 2^-142. A row with infinity or NaN becomes NaN, a row of zeros has
        the scale 0. Autograd sees a constant.

        Args:
            x: (batch, heads, tokens, head_dim), float32, bfloat16 or float16.

        Raises:
            TypeError, ValueError: x has another dtype, or not four axes.
        """
        _checks.attention_input("x", x)
        _checks.floating_dtype(x.dtype, _arrays.CORE_DTYPES, "x")
        _checks.head_dim(x.shape[3])
        xp, wide = _arrays.namespace(x), _arrays.to_float32(_arrays.detached(x))
        greatest = xp.amax(xp.abs(wide), -1)
        scales = xp.where(xp.isfinite(greatest), greatest / GREATEST, math.nan)
        divisors = xp.where(scales > 0.0, scales, math.inf)[..., None]
        with _arrays.without_warnings(x):
            shares = xp.where(xp.isfinite(wide), wide, 0.0) / divisors
        numbers = xp.clip(xp.round(shares), -GREATEST, GREATEST)
        return QuantizedRows(_arrays.to_dtype(numbers, xp.int8), scales)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return tuple(self.numbers.shape)

    @property
    def requires_grad(self) -> bool:
        """Whether the scales require grad, which attention refuses."""
        return _arrays.any_requires_grad(self.scales)

    def dequantized(self, dtype: DTypeLike | None = None) -> Any:
        """Return the products of numbers and scales, rounded to float32, and then to dtype."""
        products = _arrays.to_float32(self.numbers) * self.scales[..., None]
        return products if dtype is None else _arrays.to_dtype(products, dtype)

    def __getitem__(self, index: Any) -> QuantizedRows:
        """Return some rows: the index of batch, heads and tokens leaves each axis in place."""
        axes = index if isinstance(index, tuple) else (index,)
        if len(axes) > 3 or any(axis is None or axis is Ellipsis for axis in axes):
            raise IndexError(
                f"an index of QuantizedRows must be of batch, heads, tokens, got {index}"
            )
        return QuantizedRows(self.numbers[index], self.scales[index])

    def __repr__(self) -> str:
        return f"QuantizedRows(shape={self.shape})"

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse NumPy's functions, which would lose the scales."""
        _refuse_functions(self)

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse torch's functions, which would lose the scales."""
        _refuse_functions(cls)


def _refuse_functions(value: Any) -> NoReturn:
    raise TypeError(
        f"the argument must be an array or a tensor, got {value!r}: pass its dequantized(), or use "
        "ntk_alibi.attention"
    )


def is_quantized(value: Any) -> bool:
    """Return whether keys or values are quantized."""
    return hasattr(value, "scales")
