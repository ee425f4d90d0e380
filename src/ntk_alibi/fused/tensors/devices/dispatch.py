"""The kernels for tensors that are not on the CPU, and the choice of one."""

from __future__ import annotations

from typing import Protocol

import torch

from ntk_alibi._torch_state import without_autocast
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.tensors.chunks import compute_by_chunks
from ntk_alibi.fused.tensors.devices.flash import FlashAttention
from ntk_alibi.fused.tensors.devices.flex import FlexAttention


class DeviceKernel(Protocol):
    """A kernel for tensors on a device."""

    def find_obstacle(self, call: AttentionCall, *, log: bool) -> str | None:
        """Return why the kernel does not support a call, in a sentence, or None if it does.

        Args:
            call: a call without rotation.
            log: whether the logsumexp is needed.
        """
        ...

    def compute(
        self, call: AttentionCall, *, log: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute a call that the kernel supports: the output and, if log, the logsumexp."""
        ...


class ChunksOfQueries:
    """Torch's operations on some queries at a time, which support every call."""

    def find_obstacle(self, call: AttentionCall, *, log: bool) -> str | None:
        """Return None."""
        del call, log
        return None

    def compute(self, call: AttentionCall, *, log: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the output and, if log, the logsumexp."""
        return compute_by_chunks(call, log=log)


#: The kernels, the fastest first; the last one supports every call.
KERNELS: tuple[DeviceKernel, ...] = (
    FlashAttention(),
    FlexAttention(),
    ChunksOfQueries(),
)


def compute_on_device(
    call: AttentionCall, *, log: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute a call without rotation by the first kernel that supports it.

    The call's tensors have the dtype that autocast chose; float32 products within a kernel are not
    rounded to it.
    """
    with without_autocast(call.query.device.type):
        return kernel_for(call, log=log).compute(call, log=log)


def kernel_for(call: AttentionCall, *, log: bool) -> DeviceKernel:
    """Return the first kernel that supports a call without rotation."""
    return next(kernel for kernel in KERNELS if kernel.find_obstacle(call, log=log) is None)
