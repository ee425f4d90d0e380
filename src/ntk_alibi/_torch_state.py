"""What torch is doing with the tensors of a call, asked where the call begins.

Besides computing, torch may record a graph for autograd, transform (torch.func), differentiate in
forward mode, trace or compile. It cannot follow what reads memory by itself, so every way into the
compiled core asks `way_of`. This module never imports torch.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from ntk_alibi._arrays import any_requires_grad, is_tensor, without_wrappers

#: The tracer that runs a function once and keeps what it did not see as constants.
JIT = "torch.jit.trace"


class Way(enum.Enum):
    """How a call is computed.

    Attributes:
        CORE: the compiled core reads and writes memory, and torch sees nothing of it.
        OPERATOR: the compiled core is an operator of torch, with first gradients for autograd.
        DEVICE: a kernel of another device, with first gradients for autograd.
        OPERATIONS: torch's own operations, which have every derivative.
    """

    CORE = enum.auto()
    OPERATOR = enum.auto()
    DEVICE = enum.auto()
    OPERATIONS = enum.auto()


def way_of(query: Any, *others: Any, bias: Any = None, name: str = "query") -> Way:
    """Return the way of a call.

    Args:
        query: the queries, whose dtype and device count.
        others: what else torch may record, such as keys and values.
        bias: a bias object, an array or None.
        name: the name of the argument query in messages.

    Raises:
        ValueError: torch.jit traces.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(query, torch.Tensor):
        return Way.CORE
    watched = _is_watched(torch)
    tracer = find_tracer() if watched else None
    if tracer == JIT:
        refuse_tracer(name)
    if watched and is_transformed():
        return Way.OPERATIONS
    maps = watched and is_transformed(maps=True)
    if not query.is_cpu:
        return Way.OPERATIONS if maps or query.dtype is torch.float64 else Way.DEVICE
    casts = torch.is_autocast_enabled("cpu")
    if query.dtype is torch.float64 and not casts:
        return Way.OPERATIONS
    if watched or casts:
        return Way.OPERATOR
    if not torch.is_grad_enabled():
        return Way.CORE
    learned: tuple[Any, ...] = ()
    if getattr(bias, "constant", None) is None:
        parameters = getattr(bias, "parameters", None)  # a property if bias is a class
        learned = parameters if isinstance(parameters, tuple) else (bias,)
    return Way.OPERATOR if any_requires_grad(query, *others, *learned) else Way.CORE


def _is_watched(torch: Any) -> bool:
    """Return whether torch follows operations by other means than autograd's graph.

    Among them are modes that count, log or keep operators. Every way into the core asks it, so the
    first call with a torch without these private names says so.

    Raises:
        RuntimeError: torch has no name for one of these states.
    """
    if torch.compiler.is_dynamo_compiling():  # first, since Dynamo cannot trace the others
        return True
    try:
        return bool(
            torch._C._is_tracing()
            or torch.autograd.forward_ad._current_level >= 0
            or torch._C._are_functorch_transforms_active()
            or torch._C._len_torch_dispatch_stack()
        )
    except AttributeError as error:
        refuse_torch(error)


def refuse_torch(error: AttributeError) -> NoReturn:
    """Refuse a torch without one of its private names, which says the error."""
    raise RuntimeError(
        f"torch {sys.modules['torch'].__version__} has no name by which ntk_alibi sees what torch "
        f"does with tensors ({error}): use torch 2.9 to 2.14"
    ) from error


def find_tracer() -> str | None:
    """Return what traces: tensors have no values then, or other values at later calls."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.compiler.is_compiling():
        return "torch.compile or torch.export"
    if torch.jit.is_tracing():
        return JIT
    if torch._C._len_torch_dispatch_stack():
        modes = torch._C._TorchDispatchModeKey
        for mode, tracer in ((modes.FAKE, "FakeTensorMode"), (modes.PROXY, "make_fx")):
            if torch._C._get_dispatch_mode(mode):
                return tracer
    return None


def is_tracing() -> bool:
    """Return whether torch is tracing."""
    return find_tracer() is not None


def extremes() -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Return the functions of the greater and of the less of two lengths.

    While torch traces, lengths may be symbols, which `max` would compare at once.
    """
    if is_tracing():
        torch = sys.modules["torch"]
        return torch.sym_max, torch.sym_min
    return max, min


def is_transformed(*, maps: bool = False) -> bool:
    """Return whether torch takes derivatives in forward mode or by a transform of torch.func.

    Args:
        maps: whether vmap counts, too. torch.compile does not tell it from other transforms.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if in_forward_mode():
        return True
    active = bool(torch._C._are_functorch_transforms_active())
    if not active or maps or torch.compiler.is_compiling():
        return active
    vmap = torch._C._functorch.TransformType.Vmap
    return any(level.key() != vmap for level in torch._C._functorch.get_interpreter_stack())


def in_backward_pass() -> bool:
    """Return whether autograd calls in this thread, as for a checkpointed layer that runs again."""
    torch = sys.modules["torch"]
    try:
        return bool(torch._C._current_graph_task_id() != -1)
    except AttributeError as error:
        refuse_torch(error)


def in_forward_mode() -> bool:
    """Return whether torch differentiates in forward mode."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.autograd.forward_ad._current_level >= 0)


def is_recorded(*values: Any) -> bool:
    """Return whether torch records a graph of any of the values for autograd."""
    return any_requires_grad(*values) and bool(sys.modules["torch"].is_grad_enabled())


def is_differentiated(value: Any) -> bool:
    """Return whether torch records a graph of a value, or the value has a tangent."""
    if is_recorded(value):
        return True
    if not in_forward_mode() or not is_tensor(value):
        return False
    return sys.modules["torch"].autograd.forward_ad.unpack_dual(value).tangent is not None


def is_followed(*values: Any) -> bool:
    """Return whether torch records, transforms, maps or traces operations on the values."""
    return is_recorded(*values) or is_transformed(maps=True) or is_tracing()


def has_values(*arrays: Any) -> bool:
    """Return whether all arrays have values that may be read.

    Traced and mapped tensors have none, and floating values that torch.func differentiates would
    become constants.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    watched = _is_watched(torch)
    if watched and is_tracing():
        return all(x is None for x in arrays)
    for x in arrays:
        if isinstance(x, torch.Tensor) and (x.is_meta or (watched and not _is_readable(x))):
            return False
    return True


def _is_readable(tensor: Any) -> bool:
    """Return whether a tensor has values under the transforms of torch.func."""
    inner = without_wrappers(tensor)
    if inner is not tensor and tensor.is_floating_point():
        return False
    return not (inner.is_meta or sys.modules["torch"]._C._functorch.is_batchedtensor(inner))


def in_autocast_dtype(*tensors: Any) -> tuple[Any, ...]:
    """Convert tensors of one device to the dtype of its autocast, if that is on."""
    torch = sys.modules["torch"]
    device = tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)
    return tensors


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context that switches autocast off for a device type."""
    torch = sys.modules["torch"]
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    context: AbstractContextManager[Any] = torch.autocast(device, enabled=False)
    return context


def is_proxy(value: Any) -> bool:
    """Return whether a value stands for a tensor in torch.fx.symbolic_trace."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.fx.Proxy)


def refuse_tracer(name: str) -> NoReturn:
    """Refuse an argument of tracers that cannot see attention."""
    raise ValueError(
        f"{name} must not go through torch.jit.trace, torch.jit.script, torch.fx.symbolic_trace or "
        "torch.onnx.export with dynamo=False, whose graphs would keep the result of one example: "
        "use torch.export or torch.compile, patch a decoder with attention='traceable', or take "
        "another model without patch"
    )


def refuse_script(_: Any) -> NoReturn:
    """Be a module's `__prepare_scriptable__`, which torch.jit.script calls."""
    refuse_tracer("model")
