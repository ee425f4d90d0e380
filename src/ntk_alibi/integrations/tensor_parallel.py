"""Tensor parallelism: the styles that the plans of our families name, and biases of some heads."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.masks import Problem

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


class SomeHeads(BiasObject):
    """Some heads of a bias of the whole model, as a bias of so many heads.

    Args:
        whole: the bias of all heads.
        heads: the heads, in a row.
    """

    whole: BiasObject
    heads: slice

    def __init__(self, whole: BiasObject, heads: slice) -> None:
        count = heads.stop - heads.start
        self.define(whole=whole, heads=heads, num_heads=count, sides=whole.sides)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The parameters of the whole bias, which get the gradients."""
        return self.whole.parameters

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the kernel form of the whole bias, cut by heads."""
        every = problem.for_heads(self.whole.num_heads)
        return self.whole.kernel_bias(every, like).for_heads(self.heads)
