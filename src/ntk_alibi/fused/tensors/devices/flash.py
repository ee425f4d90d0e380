"""Attention by the package flash-attn, whose kernels take one slope per head.

The package is optional. Its causal mask puts the last query at the last key, as ours does, and its
bias is -m |i + K - Q - j|.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from ntk_alibi._torch_state import is_recorded
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.masks import EVERYTHING

#: The dtypes of its kernels, and for each the most keys without a window. Without one the kernels
#: add m j in place of -m (i - j), in float32, which rounds scores by up to 2^-24 m K. For slopes up
#: to 1 and this many keys, the error is as large as rounding the weights to the dtype.
MOST_KEYS = {torch.bfloat16: 2**16, torch.float16: 2**13}

#: The compute capability of the oldest GPUs that its CUDA kernels support.
LEAST_CAPABILITY = (8, 0)

#: Its value for a side of the window that has no limit.
NO_LIMIT = -1

#: The greatest slope, which hides all keys but the nearest one; an infinite slope would give NaN.
STEEPEST = 2.0**60


@dataclass(frozen=True)
class FlashAttention:
    """flash-attn's `flash_attn_func` with `alibi_slopes`.

    Attributes:
        module: the package.
        device: the type of device that it supports.
    """

    module: str = "flash_attn"
    device: str = "cuda"

    def find_obstacle(self, call: AttentionCall, *, log: bool) -> str | None:
        """Return why flash-attn does not support a call, in a sentence, or None if it does."""
        device = call.query.device
        reasons = {
            f"flash-attn is for {self.device}": device.type != self.device,
            "flash-attn is for bfloat16 and float16": call.query.dtype not in MOST_KEYS,
            "flash-attn's logsumexp lacks a term of each query": log,
            "flash-attn drops other weights": call.dropout is not None,
            "there are no queries or no keys": 0 in call.problem.shape,
            "flash-attn is for newer GPUs": is_older_gpu(device, LEAST_CAPABILITY),
            **_mask_obstacles(call),
            **_bias_obstacles(call),
            f"{self.module} is not installed, or older than 2.4": _find_function(self.module)
            is None,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def compute(self, call: AttentionCall, *, log: bool) -> tuple[torch.Tensor, None]:
        """Compute the output; there is no logsumexp."""
        del log
        function: Any = _find_function(self.module)
        window, slopes = call.problem.mask.window, call.bias.left
        if slopes is not None:
            slopes = slopes[:, :, 0].detach().float().clamp(max=STEEPEST)
            slopes = (slopes[0] if len(slopes) == 1 else slopes).contiguous()
        output = function(
            *(x.transpose(1, 2) for x in (call.query, call.key, call.value)),
            softmax_scale=call.scale,
            causal=True,
            window_size=(NO_LIMIT if window is None else window - 1, 0 if window else NO_LIMIT),
            alibi_slopes=slopes,
        )
        return output.transpose(1, 2), None


def is_older_gpu(device: torch.device, capability: tuple[int, int]) -> bool:
    """Return whether a device is an NVIDIA GPU below a compute capability."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) < capability


def _mask_obstacles(call: AttentionCall) -> dict[str, bool]:
    mask, problem = call.problem.mask, call.problem
    limit = MOST_KEYS.get(call.query.dtype, 0)
    far = mask.window is None and call.bias.left is not None and problem.shape[3] > limit
    return {
        "flash-attn is for causal calls here": mask.sees_ahead,
        "flash-attn has windows, but no blocks and no sinks": (
            mask._replace(window=None, causal=True) != EVERYTHING
        ),
        "flash-attn takes no padding and no positions": not problem.plain,
        f"flash-attn rounds scores of more than {limit} keys": far,
    }


def _bias_obstacles(call: AttentionCall) -> dict[str, bool]:
    bias = call.bias
    return {
        "flash-attn takes slopes of heads and no other bias": bias.exempt > 0
        or not bias.arrays.keys() <= {"left", "right"},
        "flash-attn takes no slopes of queries": bias.left is not None and bias.left.shape[2] > 1,
        "flash-attn has no gradients of slopes": is_recorded(*bias.slopes.values()),
        "flash-attn takes no factors of scores": call.factors is not None,
    }


@functools.cache
def _find_function(module: str) -> Callable[..., Any] | None:
    """Return the package's function if it is installed and takes slopes, else None."""
    try:
        function: Callable[..., Any] = import_module(module).flash_attn_func
    except (ImportError, AttributeError):
        return None
    return function if "alibi_slopes" in inspect.signature(function).parameters else None
