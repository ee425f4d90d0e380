"""Longer contexts for ALiBi models without fine-tuning, and exact distance biases on CPUs.

- `patch(model, "dynamic-ntk")` stretches a live model of transformers, and `unpatch` takes it back;
  `models.load("nano-bloom")` is a small one to try.
- `alibi_slopes`, and `build_alibi_tensor` in place of transformers' function, take any number of
  heads and any scaling: `NTK`, `DynamicNTK`, `FlatHeads`, `Interpolation`, `MaxBias` and others.
- `attention(query, key, value, bias)` is fused attention on NumPy arrays and torch tensors with
  `ALiBi`, `T5`, `KerpleLog` and every other bias.
- `reference` has each formula in float64; `plots`, `evaluation` and `export` what their names say.

`ntk-alibi demo` on the command line shows what it does. `help(ntk_alibi.patch)` and
`help(ntk_alibi.attention)` are the places to begin.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ntk_alibi import _installed  # first, since it loads the core that others import

# isort: split
from ntk_alibi import _names, _runtime
from ntk_alibi._core import __version__
from ntk_alibi._runtime import info, set_num_threads
from ntk_alibi.biases.alibi import ALiBi
from ntk_alibi.biases.bam import BAM
from ntk_alibi.biases.bialibi import BiALiBi
from ntk_alibi.biases.dense import build_alibi_tensor
from ntk_alibi.biases.distance import DistanceFunction, DistanceTable
from ntk_alibi.biases.forget_gates import ForgetGates
from ntk_alibi.biases.kerple import KerpleLog, KerplePower
from ntk_alibi.biases.sandwich import Sandwich
from ntk_alibi.biases.slopes import alibi_slopes
from ntk_alibi.biases.t5 import T5
from ntk_alibi.fused.attention import attention
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.fused.merge import merge
from ntk_alibi.fused.quantized_rows import QuantizedRows
from ntk_alibi.masks import BlockMask, segment_ids_from_cu_seqlens
from ntk_alibi.positions.log_n import LogN, log_n_scale
from ntk_alibi.positions.rotary import XPOS, RoPE
from ntk_alibi.scaling.base import Scaling
from ntk_alibi.scaling.config import scaling_from_config
from ntk_alibi.scaling.dynamic import DynamicFlatHeads, DynamicInterpolation, DynamicNTK
from ntk_alibi.scaling.static import NTK, FlatHeads, Interpolation, MaxBias

if TYPE_CHECKING:
    from ntk_alibi import plots, precision, reference
    from ntk_alibi.engines.export import export
    from ntk_alibi.integrations import patch, patched, unpatch
    from ntk_alibi.integrations.caches.growing import GrowingCache
    from ntk_alibi.integrations.caches.window import WindowCache
    from ntk_alibi.torch.alibi_attention import AlibiAttention

__all__ = [
    "BAM",
    "NTK",
    "T5",
    "XPOS",
    "ALiBi",
    "AlibiAttention",
    "BiALiBi",
    "BlockMask",
    "DistanceFunction",
    "DistanceTable",
    "DynamicFlatHeads",
    "DynamicInterpolation",
    "DynamicNTK",
    "FlatHeads",
    "ForgetGates",
    "GrowingCache",
    "Interpolation",
    "KerpleLog",
    "KerplePower",
    "KeyNorms",
    "LogN",
    "MaxBias",
    "QuantizedRows",
    "RoPE",
    "Sandwich",
    "Scaling",
    "WindowCache",
    "__version__",
    "alibi_slopes",
    "attention",
    "build_alibi_tensor",
    "export",
    "info",
    "log_n_scale",
    "merge",
    "patch",
    "patched",
    "plots",
    "precision",
    "reference",
    "scaling_from_config",
    "segment_ids_from_cu_seqlens",
    "set_num_threads",
    "unpatch",
]

#: Names that need more than NumPy, or are seldom needed, with the modules that define them. The
#: value of a submodule's name is the submodule itself.
_LAZY = {
    "AlibiAttention": "ntk_alibi.torch.alibi_attention",
    "GrowingCache": "ntk_alibi.integrations.caches.growing",
    "WindowCache": "ntk_alibi.integrations.caches.window",
    "evaluation": "ntk_alibi.evaluation",
    "export": "ntk_alibi.engines.export",
    "models": "ntk_alibi.models",
    "patch": "ntk_alibi.integrations",
    "patched": "ntk_alibi.integrations",
    "plots": "ntk_alibi.plots",
    "precision": "ntk_alibi.precision",
    "reference": "ntk_alibi.reference",
    "unpatch": "ntk_alibi.integrations",
}

#: Names of submodules that are looked for here.
_ELSEWHERE = {
    "load": "ntk_alibi.models",
    "nano_bloom_path": "ntk_alibi.models",
    "evaluate": "ntk_alibi.evaluation",
    "read_summary": "ntk_alibi.evaluation",
    "Family": "ntk_alibi.integrations",
    "register": "ntk_alibi.integrations",
}

_runtime.start()


def __getattr__(name: str) -> Any:
    """Load the lazy names on first use."""
    if name not in _LAZY:
        if name.startswith("_"):
            advice = ""
        elif find_spec(f"{__name__}.{name}") is not None:
            advice = f": import {__name__}.{name}"
        elif name in _ELSEWHERE:
            advice = f": from {_ELSEWHERE[name]} import {name}"
        else:
            advice = _names.did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
    extra = "torch" if _LAZY[name].startswith("ntk_alibi.torch.") else "transformers"
    with _installed.needed_by(name, extra):
        module = import_module(_LAZY[name])
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
