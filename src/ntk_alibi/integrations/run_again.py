"""Layers that run again in a backward pass, where checkpoints keep inputs alone.

A layer that gets a mask in place of tokens is not told the patch of its forward pass.
"""

from __future__ import annotations

from typing import Any

import torch

from ntk_alibi._torch_state import is_recorded, is_transformed

ANOTHER_PATCH = (
    "the patch must stay as it is until the backward pass of a compiled or checkpointed model is "
    "done, which computes weights again: call backward() inside of the patch"
)


class _SamePatch(torch.autograd.Function):
    """The identity, whose backward pass compares the patch of the layer that runs again."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, serial: torch.Tensor) -> torch.Tensor:
        ctx.serial = int(serial)
        ctx.save_for_backward(serial)  # a checkpoint saves it anew
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if int(ctx.saved_tensors[0]) != ctx.serial:
            raise ValueError(ANOTHER_PATCH)
        return gradients[0], None


def checked(output: torch.Tensor, serial: int) -> torch.Tensor:
    """Return a layer's output, whose backward pass refuses a layer that ran again otherwise.

    Args:
        output: the output.
        serial: the number of the patch.
    """
    if not is_recorded(output) or is_transformed(maps=True):
        return output
    same: torch.Tensor = _SamePatch.apply(output, torch.tensor(serial))  # type: ignore[no-untyped-call]
    return same


def check_has_run(patch: Any) -> None:
    """Refuse a patch that has come since the forward pass of a layer that runs again."""
    if not patch.has_run:
        raise ValueError(ANOTHER_PATCH)
