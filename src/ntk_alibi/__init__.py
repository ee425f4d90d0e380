"""Longer contexts for ALiBi models without fine-tuning, and exact distance biases on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ntk_alibi import _rich, _runtime
from ntk_alibi._core import __version__
from ntk_alibi._runtime import info, set_num_threads
from ntk_alibi.bialibi import BiALiBi
from ntk_alibi.bias import ALiBi, build_alibi_tensor
from ntk_alibi.distance_bias import (
    BAM,
    T5,
    DistanceFunction,
    DistanceTable,
    KerpleLog,
    KerplePower,
    Sandwich,
)
from ntk_alibi.forget_gates import ForgetGates
from ntk_alibi.fused_attention import attention
from ntk_alibi.log_n import log_n_scale
from ntk_alibi.plain_attention import KeyNorms, merge
from ntk_alibi.rotary import XPOS, RoPE
from ntk_alibi.scaling import (
    NTK,
    DynamicInterpolation,
    DynamicNTK,
    Interpolation,
    Scaling,
    scaling_from_config,
)
from ntk_alibi.slopes import alibi_slopes

if TYPE_CHECKING:
    from ntk_alibi import plots, precision, reference
    from ntk_alibi.integrations import patch
    from ntk_alibi.integrations.growing_cache import GrowingCache
    from ntk_alibi.integrations.window_cache import WindowCache
    from ntk_alibi.torch.alibi_attention import AlibiAttention

__all__ = [
    "BAM",
    "NTK",
    "T5",
    "XPOS",
    "ALiBi",
    "AlibiAttention",
    "BiALiBi",
    "DistanceFunction",
    "DistanceTable",
    "DynamicInterpolation",
    "DynamicNTK",
    "ForgetGates",
    "GrowingCache",
    "Interpolation",
    "KerpleLog",
    "KerplePower",
    "KeyNorms",
    "RoPE",
    "Sandwich",
    "Scaling",
    "WindowCache",
    "__version__",
    "alibi_slopes",
    "attention",
    "build_alibi_tensor",
    "info",
    "log_n_scale",
    "merge",
    "patch",
    "plots",
    "precision",
    "reference",
    "scaling_from_config",
    "set_num_threads",
]

_rich.start()
_runtime.start()


def __getattr__(name: str) -> Any:
    """Load on first use what needs more than NumPy, or is seldom needed."""
    from importlib import import_module

    if name == "AlibiAttention":
        return import_module("ntk_alibi.torch.alibi_attention").AlibiAttention
    if name == "GrowingCache":
        return import_module("ntk_alibi.integrations.growing_cache").GrowingCache
    if name == "WindowCache":
        return import_module("ntk_alibi.integrations.window_cache").WindowCache
    if name == "patch":
        return import_module("ntk_alibi.integrations").patch
    if name in ("plots", "precision", "reference"):
        return import_module(f"ntk_alibi.{name}")
    raise AttributeError(f"module 'ntk_alibi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
