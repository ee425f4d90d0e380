"""`ntk_alibi.merge` of tensors that require grad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

Merged: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Any]]


class _Merge(torch.autograd.Function):
    """Merge partial results; the inputs are the function that merges, then outputs, logsumexps."""

    @staticmethod
    def forward(
        ctx: Any, merged: Merged, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        parts = len(tensors) // 2
        output, logsumexp = merged(tensors[:parts], tensors[parts:])
        ctx.save_for_backward(*tensors, output, logsumexp)
        return output, logsumexp

    @staticmethod
    def backward(
        ctx: Any, output_gradient: torch.Tensor, logsumexp_gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the parts."""
        *tensors, output, logsumexp = ctx.saved_tensors
        parts = len(tensors) // 2
        pairs = zip(tensors[:parts], tensors[parts:], strict=True)
        gradients = output_gradient, logsumexp_gradient.float()
        found = [part_gradients(pair, (output, logsumexp), *gradients) for pair in pairs]
        return (None, *(x for x, _ in found), *(x for _, x in found))


def part_gradients(
    part: tuple[torch.Tensor, torch.Tensor],
    merged: tuple[torch.Tensor, torch.Tensor],
    output_gradient: torch.Tensor,
    logsumexp_gradient: torch.Tensor | float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return w do and w (do.(o_part - o) + dl), with w = exp(logsumexp_part - logsumexp).

    Args:
        part: output and logsumexp of a part.
        merged: output and logsumexp of all parts.
        output_gradient: do.
        logsumexp_gradient: dl, float32.
    """
    (output, log), (whole, whole_log) = part, merged
    whole_log = torch.where(whole_log.isneginf(), 0.0, whole_log)
    weight = torch.exp(log.double() - whole_log)[..., None].to(torch.float32)
    # A part without weight may hold NaN.
    step = torch.where(weight == 0.0, 0.0, output.float() - whole.float())
    change = (output_gradient.float() * step).sum(-1) + logsumexp_gradient
    return (weight * output_gradient.float()).to(output.dtype), (weight[..., 0] * change).to(
        log.dtype
    )


def merged_tensors(
    merged: Merged, outputs: Sequence[torch.Tensor], logsumexps: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the float64 logsumexp that `merged` computes, differentiable."""
    apply: Any = _Merge.apply
    result: tuple[torch.Tensor, torch.Tensor] = apply(merged, *outputs, *logsumexps)
    return result
