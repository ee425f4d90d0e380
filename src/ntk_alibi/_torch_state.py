"""The state of torch and of its tensors, which callers ask before they read numbers."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def is_tracing() -> bool:
    """Return whether torch is tracing, so that tensors have no values, or others at later calls."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_compiling():
        return True
    if not torch._C._len_torch_dispatch_stack():
        return False
    modes = torch._C._TorchDispatchModeKey  # those of FakeTensorMode and of make_fx
    return any(torch._C._get_dispatch_mode(mode) for mode in (modes.FAKE, modes.PROXY))


def is_recording() -> bool:
    """Return whether torch records operations on tensors that require grad."""
    return bool(sys.modules["torch"].is_grad_enabled())


def is_watched() -> bool:
    """Return whether a mode of torch sees each operation, or forward-mode differentiation does."""
    torch = sys.modules["torch"]
    return bool(
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or _differentiates_forward(torch)
    )


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context in which torch rounds no inputs of operations on a type of device."""
    torch = sys.modules["torch"]
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    context: AbstractContextManager[Any] = torch.autocast(device, enabled=False)
    return context


def in_autocast_dtype(*tensors: Any) -> tuple[Any, ...]:
    """Return tensors of one device in the dtype that autocast wants there."""
    torch = sys.modules["torch"]
    device = tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)
    return tensors


def _differentiates_forward(torch: Any) -> bool:
    return bool(torch.autograd.forward_ad._current_level >= 0)


def has_tangent(value: Any) -> bool:
    """Return whether a value is a tensor with a tangent of forward-mode differentiation."""
    torch = sys.modules.get("torch")
    if torch is None or not _differentiates_forward(torch):
        return False
    if not isinstance(value, torch.Tensor):
        return False
    return torch.autograd.forward_ad.unpack_dual(value).tangent is not None


def is_wrapper(value: Any) -> bool:
    """Return whether a value is a tensor whose class has its own operations, as DTensor has.

    Memory of such a tensor does not hold its numbers. While torch is tracing no memory is read.
    """
    torch = sys.modules.get("torch")
    if torch is None or is_tracing() or not isinstance(value, torch.Tensor):
        return False
    plain: Any = torch.Tensor
    return type(value).__torch_dispatch__ is not plain.__torch_dispatch__


#: The package of torch's `context_parallel`, which it has to load.
_EXPERIMENTAL = "torch.distributed.tensor.experimental"


def cuts_sequences() -> bool:
    """Return whether torch's `context_parallel` is in force.

    It has no public sign, but replaces torch's attention by a function of its own module.
    """
    if _EXPERIMENTAL not in sys.modules:
        return False
    torch = sys.modules["torch"]
    attend = torch.nn.functional.scaled_dot_product_attention
    if attend is torch._C._nn.scaled_dot_product_attention:
        return False
    return str(attend.__module__).startswith(_EXPERIMENTAL)
