"""The kernels for tensors that are not on the CPU, and the choice of one."""

from __future__ import annotations

from typing import Protocol

import torch

from ntk_alibi import _arrays
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.torch.chunks import attention_by_chunks
from ntk_alibi.torch.devices.flash import FlashAttention
from ntk_alibi.torch.devices.flex import FlexAttention


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


#: The kernels, the fastest first; the last one can do every call.
KERNELS: tuple[DeviceKernel, ...] = (
    FlashAttention(),
    FlexAttention(),
    ChunksOfQueries(),
)


def attention_on_device(
    call: AttentionCall, *, log: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return output and logsumexp of the first kernel that can do a call without rotation.

    The call has the dtype that autocast wants; the products of float32 numbers within kernels are
    not rounded to it.
    """
    with _arrays.without_autocast(call.query.device.type):
        return kernel_for(call, log=log).attend(call, log=log)


def kernel_for(call: AttentionCall, *, log: bool) -> DeviceKernel:
    """Return the first kernel that can do a call without rotation."""
    return next(kernel for kernel in KERNELS if kernel.can_run(call, log=log) is None)
