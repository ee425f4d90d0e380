"""ALiBi slopes for any head count and model family, stretched by a scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import has_values
from ntk_alibi.biases.parameters import check_floating
from ntk_alibi.methods import as_scaling
from ntk_alibi.scaling import AnyScaling, Floats, Scaling, is_dynamic
from ntk_alibi.scaling.static import USUAL_MAX_BIAS, alibi_exponents

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

Sides: TypeAlias = Literal["causal", "symmetric", "halves", "two_slopes"]
SIDES = ("causal", "symmetric", "halves", "two_slopes")


def hidden_sides(sides: Sides, heads: int) -> NDArray[np.bool_]:
    """Return which heads hide their left and their right side, (2, 1, heads, 1) bool.

    Of a causal bias none does: a causal mask hides the keys ahead.
    """
    hidden = np.zeros((2, 1, heads, 1), np.bool_)
    if sides == "halves":
        hidden[0, :, left_heads(heads) :] = hidden[1, :, : left_heads(heads)] = True
    return hidden


def left_heads(heads: int) -> int:
    """Return the number of heads that see keys behind with sides="halves": the larger half."""
    return heads - heads // 2


def with_axes(slopes: Any) -> Any:
    """Add axes to slopes, an array or a tensor: (1 or batch, heads, 1 or queries)."""
    if slopes.ndim == 1:
        return slopes[None, :, None]
    return slopes[:, :, None] if slopes.ndim == 2 else slopes


def checked_slopes(name: str, value: Any, heads: int) -> Any:
    """Check slopes (heads,), (batch, heads) or (batch, heads, queries): floating, not NaN.

    Lists may contain integers, as people type them. Arrays become a read-only copy; tensors are
    returned unchanged.
    """
    _checks.check_plain(name, value)
    array = value if _arrays.is_tensor(value) else np.array(value)
    if isinstance(value, list) and array.dtype.kind == "i":
        array = array.astype(np.float64)
    check_floating(name, array.dtype)
    shape = tuple(array.shape)
    if len(shape) not in (1, 2, 3):
        raise ValueError(
            f"{name} must have shape (heads,), (batch, heads) or (batch, heads, queries), "
            f"got {shape}"
        )
    got = shape[0] if len(shape) == 1 else shape[1]
    if got != heads:
        raise ValueError(f"{name} must have {heads} heads, got {got} (shape {shape})")
    if has_values(array):
        values = _arrays.to_numpy(array)
        if np.isnan(values).any():
            raise ValueError(f"{name} must not hold NaN")
        if np.isneginf(values).any():
            raise ValueError(f"{name} must not hold -infinity; +infinity hides a side")
    if not _arrays.is_tensor(array):
        array.flags.writeable = False
    return array


def checked_lengths(value: Any) -> NDArray[np.int64]:
    """Check token counts (batch,) and return them as int64: 0 to 2^31 - 1."""
    array = _checks.constant("lengths", value)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"lengths must be integers, got {_checks.briefly(value)}")
    if array.ndim != 1:
        raise ValueError(f"lengths must have shape (batch,), got {array.shape}")
    if array.size and not (array.min() >= 0 and array.max() <= _checks.MAX_LENGTH):
        raise ValueError(
            f"lengths must be between 0 and {_checks.MAX_LENGTH}, got {_checks.briefly(value)}"
        )
    return array.astype(np.int64)


SLOPE_RULES = ("press", "geometric")


@overload
def alibi_slopes(
    num_heads: int,
    scaling: AnyScaling | None,
    lengths: torch.Tensor,
    *,
    rule: Literal["press", "geometric"] = "press",
) -> torch.Tensor: ...
@overload
def alibi_slopes(
    num_heads: int,
    scaling: AnyScaling | None = None,
    lengths: Sequence[Any] | NDArray[Any] | None = None,
    *,
    rule: Literal["press", "geometric"] = "press",
) -> NDArray[np.float32]: ...
def alibi_slopes(
    num_heads: int,
    scaling: AnyScaling | None = None,
    lengths: Any = None,
    *,
    rule: Literal["press", "geometric"] = "press",
) -> Array:
    """Return ALiBi's slope m_h for each head, stretched by a scaling.

    Formula::

        m_h = 2^-e_h,  h = 1 .. H
        rule="press":      e_h = 8h/P for the first P = 2^floor(log2 H) heads,
                           then 8(2i - 1)/(2P), i = 1 .. H - P (BLOOM, MPT)
        rule="geometric":  e_h = 8h/H

    The scaling changes the exponents; 2^-e_h is rounded once, from float64 to float32.

    Args:
        num_heads: H >= 1.
        scaling: a scaling, its dict, the name of a method such as "ntk:4", or None for ALiBi's
            original slopes.
        lengths: the number of tokens of each text for a dynamic scaling: (batch,) integers as an
            array, a tensor or a list. Static scalings give the same slopes for all.
        rule: "press" or "geometric".

    Returns:
        float32 slopes, a tensor if lengths is a tensor: (heads,), and with a dynamic scaling
        (batch, heads).

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or lengths are missing.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(6)
        array([0.25      , 0.0625    , 0.015625  , 0.00390625, 0.5       ,
               0.125     ], dtype=float32)

    Source: Press et al. 2022 (arXiv 2108.12409); its code for head counts other than powers of two.
    """
    heads = _checks.num_heads(num_heads)
    chosen = as_scaling(scaling)
    _checks.choice("rule", rule, SLOPE_RULES)
    checked = None if lengths is None else checked_lengths(lengths)
    if not is_dynamic(chosen):
        checked = None  # slopes of a static scaling are the same for all
    exponents = alibi_exponents(heads, geometric=rule == "geometric").copy()
    slopes: Array = backend_of(lengths).convert(scaled_slopes(exponents, chosen, checked))
    return slopes


def scaled_slopes(
    exponents: Floats, scaling: Scaling | None, lengths: NDArray[np.int64] | None
) -> NDArray[np.float32]:
    """Return the slopes 2^-e after a scaling of exponents (heads,): (heads,) or (texts, heads).

    With packed segments, lengths are (batch, queries), of each query's text, and the slopes (batch,
    heads, queries).
    """
    heads = len(exponents)
    index = None
    if lengths is not None and lengths.ndim == 2:
        counts = lengths
        lengths, index = np.unique(counts, return_inverse=True)
        index = index.reshape(counts.shape)
    if scaling is not None:
        exponents = np.asarray(scaling.scale_exponents(exponents, lengths), np.float64)
        expected = (heads,) if lengths is None else (len(lengths), heads)
        if exponents.shape != expected:
            raise ValueError(
                f"scale_exponents must return {expected}, got {exponents.shape} from "
                f"{_checks.briefly(scaling)}"
            )
        wrong = exponents[~np.isfinite(exponents)]
        if wrong.size:
            raise ValueError(
                f"scale_exponents must return finite values, got {wrong[0]} from "
                f"{_checks.briefly(scaling)}"
            )
    slopes = np.exp2(-exponents).astype(np.float32)
    return slopes if index is None else slopes[index].swapaxes(1, 2)


@dataclass(frozen=True)
class ModelSlopes:
    """How a model family computes its slopes.

    Attributes:
        heads: number of query heads of the whole model.
        max_bias: for powers of two, the exponent of the flattest slope before any scaling.
        slope_divisor: divides the slopes after the scaling.
        counts_holes: whether distances count padding between real tokens.
    """

    heads: int
    max_bias: float = USUAL_MAX_BIAS
    slope_divisor: float = 1.0
    counts_holes: bool = False

    @classmethod
    def for_bloom(cls, heads: int) -> Self:
        """Return BLOOM's slopes."""
        return cls(heads)

    @classmethod
    def for_mpt(cls, heads: int, bias_max: float | None) -> Self:
        """Return MPT's slopes; bias_max is 8 if the config has none."""
        most = USUAL_MAX_BIAS if bias_max is None else float(bias_max)
        return cls(heads, max_bias=most, counts_holes=True)

    @classmethod
    def for_falcon(cls, heads: int, head_dim: int) -> Self:
        """Return Falcon's slopes, which are divided by sqrt(head_dim), as are its q.k."""
        return cls(heads, slope_divisor=math.sqrt(head_dim))

    def slopes(
        self, scaling: Scaling | None, lengths: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Return float32 slopes, (1 or batch, heads, 1 or queries)."""
        slopes = scaled_slopes(self._exponents(), scaling, lengths)
        result: NDArray[np.float32] = with_axes(slopes / np.float32(self.slope_divisor))
        return result

    def find_max_bias(self, scaling: Scaling | None) -> float | None:
        """Return b such that the exponents e_h b / 8 give the scaled slopes; None if there is none.

        MPT stores b as `alibi_bias_max`, GGUF as `max_alibi_bias`. Slopes may be off by a
        millionth.
        """
        if is_dynamic(scaling):
            return None
        usual = alibi_exponents(self.heads)
        scaled = self._exponents()
        if scaling is not None:
            scaled = np.asarray(scaling.scale_exponents(scaled), np.float64)
        scaled = scaled + math.log2(self.slope_divisor)
        flattest = usual.argmax()
        number = USUAL_MAX_BIAS * scaled[flattest] / usual[flattest]
        same = np.abs(np.exp2(scaled - usual * number / USUAL_MAX_BIAS) - 1.0).max() <= 1e-6
        return float(number) if same and number > 0.0 else None

    def as_factor(self, scaling: Scaling) -> float:
        """Return the factor by which a static scaling divides the flattest slope."""
        return float(self.slopes(None).min() / self.slopes(scaling).min())

    def _exponents(self) -> Floats:
        return alibi_exponents(self.heads) * (self.max_bias / USUAL_MAX_BIAS)

    def left_and_right(
        self, sides: Sides, scaling: Scaling | None, lengths: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return left and right slopes in the shape of `slopes`; +inf hides a side."""
        parts = [self.heads]
        if sides == "halves":
            parts = [left_heads(self.heads), self.heads - left_heads(self.heads)]
        rules = [replace(self, heads=heads) for heads in parts if heads]
        slopes = np.concatenate([rule.slopes(scaling, lengths) for rule in rules], axis=1)
        hidden, infinity = hidden_sides(sides, self.heads), np.float32(np.inf)
        return np.where(hidden[0], infinity, slopes), np.where(hidden[1], infinity, slopes)
