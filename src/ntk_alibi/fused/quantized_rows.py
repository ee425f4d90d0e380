"""Keys and values as eight-bit integers, with a scale for each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array, DTypeLike
from ntk_alibi._backends import backend_of

#: The largest magnitude of a quantized value.
GREATEST = 127


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedRows:
    """Keys or values as int8 integers with a float32 scale per token and head.

    Formula::

        x[b, h, t, d] = numbers[b, h, t, d] scales[b, h, t]

    `attention` takes them as key and value, with a float32, bfloat16 or float16 query, and computes
    with exactly these products. They need (D + 4) / 4D of the memory of float32 rows with D
    channels: 0.27 for D = 64. With rotary, `attention` makes float32 copies of them.

    Attributes:
        numbers: int8 (batch, heads, tokens, head_dim), array or tensor.
        scales: float32 (batch, heads, tokens). A row whose scale is NaN is NaN.

    Raises:
        TypeError: an array has another dtype, or the frameworks differ.
        ValueError: the shapes or devices do not match; in `attention`, torch records or traces.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 8, 5, 16), np.float32)
        >>> rows = na.QuantizedRows.of(key)
        >>> bool(np.abs(rows.dequantized() - key).max() <= key.max() / 253)
        True
        >>> na.attention(query, rows, na.QuantizedRows.of(value), na.ALiBi(8)).shape
        (1, 8, 5, 16)

    Source: this package (docs/formulas.md).
    """

    numbers: Any
    scales: Any

    def __post_init__(self) -> None:
        rows, scales = self.numbers, self.scales
        _checks.attention_input("numbers", rows)
        if not backend_of(rows).holds(scales):
            raise TypeError(f"scales must be of numbers' framework, got {type(scales).__name__}")
        _checks.check_plain("scales", scales)
        for name, dtype in (("numbers", "int8"), ("scales", "float32")):
            array = getattr(self, name)
            native = getattr(array.dtype, "isnative", True)
            if _arrays.dtype_name(array.dtype) != dtype or not native:
                raise TypeError(f"{name} must be of native {dtype}, got {array.dtype}")
        shape = tuple(rows.shape[:3])
        if tuple(scales.shape) != shape:
            raise ValueError(f"scales must have shape {shape}, got {tuple(scales.shape)}")
        if getattr(rows, "device", None) != getattr(scales, "device", None):
            raise ValueError(f"scales must be on numbers' {rows.device}, got {scales.device}")

    @staticmethod
    def of(x: Array) -> QuantizedRows:
        """Quantize an array: round each row to multiples of its scale.

        Formula::

            scale = max_d |x_d| / 127,   |x_d - numbers_d scale| <= scale / 2

        The bound holds up to float32 rounding for rows whose largest magnitude is at least 1.5e-36;
        in smaller rows the error is at most 2^-142. A row with infinity or NaN becomes NaN, a row
        of zeros has scale 0. Autograd treats the result as a constant.

        Args:
            x: (batch, heads, tokens, head_dim), float32, bfloat16 or float16.

        Returns:
            The quantized rows, in x's framework.

        Raises:
            TypeError: x is not an array or a tensor, or has another dtype.
            ValueError: x does not have four axes.
        """
        _checks.attention_input("x", x)
        _checks.floating_dtype(x.dtype, _arrays.CORE_DTYPES, "x")
        _checks.head_dim(x.shape[3])
        backend = backend_of(x)
        xp, wide = backend.xp, backend.cast(backend.detached(x), "float32")
        greatest = xp.amax(xp.abs(wide), -1)
        scales = xp.where(xp.isfinite(greatest), greatest / GREATEST, math.nan)
        divisors = xp.where(scales > 0.0, scales, math.inf)[..., None]
        with backend.without_warnings():
            shares = xp.where(xp.isfinite(wide), wide, 0.0) / divisors
        rounded = xp.clip(xp.round(shares), -GREATEST, GREATEST)
        return QuantizedRows(backend.cast(rounded, "int8"), scales)

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, heads, tokens, head_dim)."""
        return tuple(self.numbers.shape)

    @property
    def requires_grad(self) -> bool:
        """Whether the scales require grad, which attention refuses."""
        return _arrays.any_requires_grad(self.scales)

    def dequantized(self, dtype: DTypeLike | None = None) -> Any:
        """Return the values as float32, rounded to dtype if it is given."""
        backend = backend_of(self.numbers)
        products = backend.cast(self.numbers, "float32") * self.scales[..., None]
        return products if dtype is None else backend.cast(products, dtype)

    def __getitem__(self, index: Any) -> QuantizedRows:
        """Return some rows, by an index of batch, heads and tokens that keeps all axes."""
        axes = index if isinstance(index, tuple) else (index,)
        if len(axes) > 3 or any(axis is None or axis is Ellipsis for axis in axes):
            raise IndexError(
                "an index of QuantizedRows must be of batch, heads, tokens, got "
                f"{_checks.briefly(index)}"
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
        "the argument must be an array or a tensor, "
        f"got {_checks.briefly(value)}: pass its dequantized(), or use "
        "ntk_alibi.attention"
    )


def is_quantized(value: Any) -> bool:
    """Return whether keys or values are quantized."""
    return hasattr(value, "scales")
