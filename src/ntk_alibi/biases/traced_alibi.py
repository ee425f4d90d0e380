"""ALiBi while torch traces a call: constants, or an operator that counts tokens when it runs.

Imported only while torch traces, because torch cannot trace the compiled core.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_scalar

from ntk_alibi._backends import backend_of
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.scaled_bias import bias_for_counts, token_counts
from ntk_alibi.biases.slopes import ModelSlopes, Sides
from ntk_alibi.masks import Problem, SegmentIds
from ntk_alibi.scaling import (
    DYNAMIC_TYPES,
    STATIC_TYPES,
    Scaling,
    is_dynamic,
    scaling_from_config,
    scaling_to_config,
)


def traced_alibi(
    like: torch.Tensor, problem: Problem, num_heads: int, scaling: Scaling | None, sides: Sides
) -> KernelBias:
    """Return the bias of a problem, on like's device.

    Raises:
        ValueError: the scaling is not one of ours; a subclass may have other slopes.
    """
    known = (*STATIC_TYPES.values(), *DYNAMIC_TYPES.values())
    if scaling is not None and type(scaling) not in known:
        allowed = ", ".join(kind.__name__ for kind in known)
        raise ValueError(
            f"scaling must be None or one of {allowed} where torch traces attention, got "
            f"{type(scaling).__name__}: pass ALiBi(num_heads, slopes=na.alibi_slopes(...)), made "
            "outside of the traced code"
        )
    heads = guard_scalar(num_heads)  # a constant where torch has made a symbol of it
    parameters = (
        (name, x if isinstance(x, str) else guard_scalar(x))
        for name, x in scaling_to_config(scaling).items()
    )
    config = _as_text(tuple(parameters))
    if not is_dynamic(scaling):
        left, right = (
            torch.tensor(side, dtype=torch.float32, device=like.device)[None, :, None]
            for side in _static_slopes(heads, config, sides)
        )
    else:
        given = (problem.key_padding_mask, problem.query_positions, problem.key_positions)
        given = (*given, *(problem.segment_ids or (None, None)))
        tensors = [None if x is None else backend_of(like).convert(x) for x in given]
        unmapped = torch.empty(0, device=like.device)  # the operator has no rule for vmap
        left, right = _dynamic_slopes(unmapped, *tensors, problem.shape, heads, config, sides)
    return KernelBias(left, right)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _as_text(config: tuple[tuple[str, Any], ...]) -> str:
    return json.dumps(dict(config))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _static_slopes(num_heads: int, config: str, sides: Sides) -> tuple[tuple[float, ...], ...]:
    """Return the slopes (heads,) of each side."""
    scaling = scaling_from_config(json.loads(config))
    bias = bias_for_counts(ModelSlopes(num_heads), scaling, sides, None)
    return tuple(tuple(side.ravel().tolist()) for side in bias.slopes.values())


@torch.library.custom_op(
    "ntk_alibi::dynamic_slopes",
    mutates_args=(),
    schema="(Tensor like, Tensor? key_padding_mask, Tensor? query_positions, "
    "Tensor? key_positions, Tensor? query_segment_ids, Tensor? segment_ids, SymInt[] shape, "
    "int num_heads, str config, str sides) -> (Tensor, Tensor)",
)
def _dynamic_slopes(like: torch.Tensor, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    *tensors, shape, num_heads, config, sides = inputs
    real, at_queries, at_keys, *ids = (None if x is None else x.cpu().numpy() for x in tensors)
    problem = Problem(
        tuple(shape),
        key_padding_mask=real,
        query_positions=at_queries,
        key_positions=at_keys,
        segment_ids=None if ids[0] is None else SegmentIds(*ids),
    )
    scaling = scaling_from_config(json.loads(config))
    counts = token_counts(scaling, problem)
    bias = bias_for_counts(ModelSlopes(num_heads), scaling, sides, counts)
    slopes: tuple[torch.Tensor, torch.Tensor] = _slopes_like(like, *inputs)
    for place, side in zip(slopes, bias.slopes.values(), strict=True):
        place.copy_(torch.from_numpy(side))
    return slopes


@_dynamic_slopes.register_fake
def _slopes_like(like: torch.Tensor, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return empty tensors (batch, heads, 1 or queries) for both sides."""
    *_, ids, shape, num_heads, _, _ = inputs
    place = shape[0], num_heads, 1 if ids is None else shape[2]
    return like.new_empty(place, dtype=torch.float32), like.new_empty(place, dtype=torch.float32)
