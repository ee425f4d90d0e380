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
        """Return w do and w (do.(o_part - o) + dl), with w = exp(logsumexp_part - logsumexp)."""
        *tensors, output, logsumexp = ctx.saved_tensors
        parts = len(tensors) // 2
        whole = torch.where(logsumexp.isneginf(), 0.0, logsumexp)
        output_gradients, log_gradients = [], []
        for part, log in zip(tensors[:parts], tensors[parts:], strict=True):
            weight = torch.exp(log.double() - whole)[..., None].to(torch.float32)
            # A part without weight may hold NaN.
            step = torch.where(weight == 0.0, 0.0, part.float() - output.float())
            change = (output_gradient.float() * step).sum(-1) + logsumexp_gradient.float()
            output_gradients.append((weight * output_gradient.float()).to(part.dtype))
            log_gradients.append((weight[..., 0] * change).to(log.dtype))
        return (None, *output_gradients, *log_gradients)


def merged_tensors(
    merged: Merged, outputs: Sequence[torch.Tensor], logsumexps: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the float64 logsumexp that `merged` computes, differentiable."""
    apply: Any = _Merge.apply
    result: tuple[torch.Tensor, torch.Tensor] = apply(merged, *outputs, *logsumexps)
    return result
