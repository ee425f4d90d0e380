"""ALiBi slopes for any head count, stretched by a scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi._arrays import Array
from ntk_alibi.biases import checks
from ntk_alibi.scaling import Scaling
from ntk_alibi.scaling import checks as scaling_checks

if TYPE_CHECKING:
    import torch

Sides: TypeAlias = Literal["causal", "symmetric", "halves", "two_slopes"]
SIDES = ("causal", "symmetric", "halves", "two_slopes")


def hidden_sides(sides: Sides, heads: int) -> NDArray[np.bool_]:
    """Return a mask (2, 1, heads, 1) of the heads whose left, and right, side is hidden."""
    hidden = np.zeros((2, 1, heads, 1), np.bool_)
    if sides == "causal":
        hidden[1] = True
    elif sides == "halves":
        hidden[0, :, left_heads(heads) :] = hidden[1, :, : left_heads(heads)] = True
    return hidden


def left_heads(heads: int) -> int:
    """Return the number of heads that see keys behind with sides="halves": the larger half."""
    return heads - heads // 2


def both_sides(slopes: Any) -> tuple[Any, Any]:
    """Return left and right slopes: those of a pair, or one array for both."""
    return slopes if isinstance(slopes, tuple) else (slopes, slopes)


def float_with_axes(slopes: NDArray[Any]) -> NDArray[np.float32]:
    """Return slopes as float32 (1 or batch, heads, 1 or queries)."""
    axes: NDArray[np.float32] = with_axes(_checks.as_float32("slopes", slopes))
    return axes


def with_axes(slopes: Any) -> Any:
    """Return slopes, an array or a tensor, as (1 or batch, heads, 1 or queries)."""
    if slopes.ndim == 1:
        return slopes[None, :, None]
    return slopes[:, :, None] if slopes.ndim == 2 else slopes


SLOPE_RULES = ("press", "geometric")


@overload
def alibi_slopes(
    num_heads: int,
    scaling: Scaling | None,
    lengths: torch.Tensor,
    *,
    rule: Literal["press", "geometric"] = "press",
) -> torch.Tensor: ...
@overload
def alibi_slopes(
    num_heads: int,
    scaling: Scaling | None = None,
    lengths: Sequence[Any] | NDArray[Any] | None = None,
    *,
    rule: Literal["press", "geometric"] = "press",
) -> NDArray[np.float32]: ...
def alibi_slopes(
    num_heads: int,
    scaling: Scaling | None = None,
    lengths: Any = None,
    *,
    rule: Literal["press", "geometric"] = "press",
) -> Array:
    """Return the slopes m_h of ALiBi, head by head.

    m_h = 2^-e_h. rule="press" (BLOOM, MPT): with P = 2^floor(log2 H), the first P heads have e_h =
    8h/P, the remaining H - P have 8(2i - 1)/(2P), i = 1, 2, ... rule="geometric": e_h = 8h/H for
    every H. The scaling stretches the exponents; 2^-e is rounded once, from float64 to float32.

    Args:
        num_heads: H, any number >= 1.
        scaling: a scaling, or None for the plain slopes.
        lengths: numbers of tokens, for dynamic scalings only: (batch,) integers, array, tensor or
            list. With per="query" they may also be (batch, queries), the prefix length of each
            query; (batch,) then stands for max(lengths) queries, the last at each row's last token.
        rule: "press" or "geometric".

    Returns:
        Slopes in float32, a tensor if lengths is a tensor. Their shape is (heads,), for a dynamic
        scaling (batch, heads), and with per="query" (batch, heads, queries).

    Raises:
        TypeError, ValueError: an argument is wrong, lengths are missing, or the scaling is a
            `Knee`, with which heads have two slopes.

    Example:
        >>> import ntk_alibi as na
        >>> na.alibi_slopes(6)
        array([0.25      , 0.0625    , 0.015625  , 0.00390625, 0.5       ,
               0.125     ], dtype=float32)

    Source: Press et al. 2022 (arXiv 2108.12409) and its code for head counts that are no power of
    two.
    """
    heads = _checks.num_heads(num_heads)
    scaling_checks.scaling(scaling)
    _checks.choice("rule", rule, SLOPE_RULES)
    checked = None
    if scaling_per(scaling) is not None and lengths is not None:
        checked = checks.lengths(lengths, ndim=(1, 2) if scaling_per(scaling) == "query" else (1,))
        if scaling_per(scaling) == "query" and checked.ndim == 1:
            checked = prefix_lengths(checked, int(checked.max(initial=0)))
    return _arrays.to_framework_of(scaled_slopes(heads, scaling, checked, rule=rule), lengths)


def scaling_per(scaling: Scaling | None) -> Literal["sequence", "query"] | None:
    """Return the kind of lengths that a scaling depends on: "sequence", "query" or None."""
    per: Literal["sequence", "query"] | None = getattr(scaling, "per", None)
    return per


def prefix_lengths(lengths: NDArray[np.int64], query_length: int) -> NDArray[np.int64]:
    """Return the prefix length of each query, itself included, (batch, queries).

    The last query is each row's last token.
    """
    behind = np.arange(query_length - 1, -1, -1)
    prefixes: NDArray[np.int64] = np.maximum(lengths[:, None] - behind, 0)
    return prefixes


def scaled_slopes(
    num_heads: int,
    scaling: Scaling | None,
    lengths: NDArray[np.int64] | None,
    *,
    rule: str = "press",
) -> NDArray[np.float32]:
    """Return `alibi_slopes` of checked arguments; lengths are of the kind that `per` names."""
    exponents = _core.alibi_exponents(num_heads, getattr(_core.SlopeRule, rule))
    if scaling is not None:
        scaled = np.asarray(scaling.scale_exponents(exponents, lengths), np.float64)
        scaling_checks.scaled_exponents(scaling, scaled, num_heads)
        exponents = scaled
    return np.exp2(-exponents).astype(np.float32)


def left_right_slopes(
    num_heads: int, scaling: Scaling | None, sides: Sides, lengths: NDArray[np.int64] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return left and right slopes, (1 or batch, heads, 1 or queries); +inf hides a side."""
    if sides != "halves":
        slopes = float_with_axes(scaled_slopes(num_heads, scaling, lengths))
    else:
        halves = (left_heads(num_heads), num_heads - left_heads(num_heads))
        slopes = np.concatenate(
            [float_with_axes(scaled_slopes(n, scaling, lengths)) for n in halves if n], axis=1
        )
    hidden, infinity = hidden_sides(sides, num_heads), np.float32(np.inf)
    return np.where(hidden[0], infinity, slopes), np.where(hidden[1], infinity, slopes)
