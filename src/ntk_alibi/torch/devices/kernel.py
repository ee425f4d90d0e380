"""The protocol of device kernels, and the kernel that supports every call."""

from __future__ import annotations

from typing import Protocol

import torch

from ntk_alibi import _arrays
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.torch.chunks import attention_by_chunks


class DeviceKernel(Protocol):
    """A way to attend on a device. It says itself whether it can do a call."""

    def can_run(self, call: AttentionCall, *, log: bool) -> str | None:
        """Return None for a call that the kernel can do, or why it cannot, in a sentence.

        Args:
            call: a call without rotation.
            log: whether the logsumexp is needed.
        """
        ...

    def attend(self, call: AttentionCall, *, log: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the output and, with log, the logsumexp of a call that the kernel can do."""
        ...


class ChunksOfQueries:
    """Torch's own operations on some queries at a time, which can do every call."""

    def can_run(self, call: AttentionCall, *, log: bool) -> str | None:
        """Return None: this is the way for all that no other kernel can do."""
        del call, log
        return None

    def attend(self, call: AttentionCall, *, log: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and the logsumexp."""
        del log
        return attention_by_chunks(call)


def sees_gradients(call: AttentionCall) -> bool:
    """Return whether autograd records a call, for its inputs or its bias."""
    if not torch.is_grad_enabled():
        return False
    tensors = call.query, call.key, call.value, call.factors, *call.bias.numbers.values()
    return _arrays.require_grad(*tensors)


def older_than(capability: tuple[int, int], device: torch.device) -> bool:
    """Return whether a device is an NVIDIA GPU below a compute capability."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) < capability
