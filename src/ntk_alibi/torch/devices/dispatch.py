"""The choice of a kernel for tensors that are not on the CPU."""

from __future__ import annotations

import torch

from ntk_alibi import _arrays
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.torch.devices.flash import FlashAttention
from ntk_alibi.torch.devices.flex import FlexAttention
from ntk_alibi.torch.devices.kernel import ChunksOfQueries, DeviceKernel

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

    The call has the dtype that autocast wants; the products of float32 numbers, with which kernels
    and certificates are exact, are not rounded to it.
    """
    with _arrays.without_autocast(call.query.device.type):
        return kernel_for(call, log=log).attend(call, log=log)


def kernel_for(call: AttentionCall, *, log: bool) -> DeviceKernel:
    """Return the first kernel that can do a call without rotation."""
    return next(kernel for kernel in KERNELS if kernel.can_run(call, log=log) is None)
