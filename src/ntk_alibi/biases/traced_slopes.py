"""A torch operator for the slopes of a static scaling, which tracing treats as a constant.

Imported only while torch traces a call, because torch cannot trace the compiled core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.scaling import (
    STATIC_TYPES,
    Scaling,
    scaling_from_config,
    scaling_to_config,
    split_knee,
)


def traced_slopes(
    like: torch.Tensor, num_heads: int, scaling: Scaling | None, sides: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left and right slopes (1, heads, 1) on like's device; with a knee, up to the knee.

    Raises:
        ValueError: the scaling is not one of `STATIC_TYPES`.
    """
    known = STATIC_TYPES.values()
    if scaling is not None and type(scaling) not in known:  # subclasses may have other slopes
        allowed = ", ".join(kind.__name__ for kind in known)
        raise ValueError(
            f"scaling must be None or one of {allowed} where torch traces attention, got "
            f"{type(scaling).__name__}: pass ALiBi(num_heads, slopes=na.alibi_slopes(...)), made "
            "outside of the traced code"
        )
    config = scaling_to_config(split_knee(scaling)[0])
    names = [name for name in config if name != "alibi_type"]
    values = [float(config[name]) for name in names]
    pair: tuple[torch.Tensor, torch.Tensor] = _slopes(
        like.detach(), num_heads, config["alibi_type"], names, values, sides
    )
    return pair


@torch.library.custom_op(
    "ntk_alibi::slopes",
    mutates_args=(),
    schema="(Tensor like, int num_heads, str alibi_type, str[] names, float[] values, str sides)"
    " -> (Tensor, Tensor)",
)
def _slopes(
    like: torch.Tensor,
    num_heads: int,
    alibi_type: str,
    names: Sequence[str],
    values: Sequence[float],
    sides: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    config = {"alibi_type": alibi_type, **dict(zip(names, values, strict=True))}
    left, right = ModelSlopes(num_heads).left_and_right(sides, scaling_from_config(config))
    return torch.tensor(left, device=like.device), torch.tensor(right, device=like.device)


@_slopes.register_fake
def _(like: torch.Tensor, num_heads: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (1, num_heads, 1)
    return like.new_empty(shape, dtype=torch.float32), like.new_empty(shape, dtype=torch.float32)
