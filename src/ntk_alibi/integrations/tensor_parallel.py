"""Tensor parallelism: the styles that the plans of our families name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Weights of queries, keys and values of all heads one after the other, divided by head.
PACKED = "ntk_alibi_packed_qkv"

#: A weight that all ranks have whole.
WHOLE = "replicate"

#: "rowwise" whose output may be changed in place, as Falcon's layers do under gradients.
OWN_OUTPUT = "ntk_alibi_rowwise"


def register_styles() -> None:
    """Let transformers know the styles `PACKED` and `OWN_OUTPUT`.

    Raises:
        RuntimeError: this version of transformers has another tensor parallelism.
    """
    try:
        styles: Any = import_module("transformers.distributed.tensor_parallel")
    except ImportError:
        raise RuntimeError(
            "transformers must have transformers.distributed.tensor_parallel for tp_plan, got "
            "another version: 5.23 has it"
        ) from None

    class OwnOutput(styles.RowwiseParallel):  # type: ignore[misc]
        def transform_output_post_forward(self, module: Any, output: Any, mesh: Any) -> Any:
            output = super().transform_output_post_forward(module, output, mesh)
            return output.clone() if output.requires_grad else output

    if PACKED not in styles.ALL_PARALLEL_STYLES:
        styles.ALL_PARALLEL_STYLES.register(OWN_OUTPUT, OwnOutput())
        packed = styles.PackedColwiseParallel(split_factor=3)
        styles.ALL_PARALLEL_STYLES.register(PACKED, packed)
