"""Checks of what vLLM is about to compute attention with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Backends whose kernels read the slopes of a layer, by vLLM's names. Others refuse slopes
#: themselves, or take them and never read them, such as FLASHINFER and TURBOQUANT.
BACKENDS = (
    "CPU_ATTN",
    "FLASH_ATTN",
    "ROCM_AITER_FA",
    "ROCM_AITER_UNIFIED_ATTN",
    "ROCM_ATTN",
    "ROCM_SEGMENTED_ATTN",
    "TRITON_ATTN",
)


def backend(name: str) -> None:
    """Check that an attention backend reads slopes."""
    if name not in BACKENDS:
        raise ValueError(
            f"the attention backend must be one that reads ALiBi's slopes ({', '.join(BACKENDS)}), "
            f"got {name}, with which the model would have no positions: set --attention-backend, "
            "or attention_backend=..., to TRITON_ATTN on GPUs"
        )


def chosen_backends(attention: Any) -> None:
    """Check the backends that vLLM's AttentionConfig names, before anything is loaded."""
    per_kind = getattr(attention, "backend_per_kind", None) or {}
    for chosen in (getattr(attention, "backend", None), *per_kind.values()):
        if chosen is not None:
            backend(chosen.name)


def whole_contexts(parallel: Any) -> None:
    """Refuse contexts that are split over processes, whose slopes see distances within a part."""
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel, name, 1)
        if size != 1:
            raise ValueError(
                f"{name} must be 1 for a model with ALiBi, got {size}: vLLM counts distances "
                "within a process's part of the context. Use --tensor-parallel-size"
            )


def same_slopes(layer: str, held: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Check that vLLM computed the slopes that its model is known for, before they are stretched.

    Raises:
        RuntimeError: it did not, so that its heads are others than those of our slopes.
    """
    if held.shape != expected.shape or not np.allclose(held, expected, rtol=1e-5, atol=0.0):
        raise RuntimeError(
            f"this vLLM is not what ntk-alibi's plugin expects: {layer} has the slopes "
            f"{held.tolist()} instead of {expected.tolist()}"
        )
