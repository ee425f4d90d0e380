"""Biases of learned tables, read through the module that holds a table.

Frameworks load and gather parameters in hooks of modules, so a table is read by calling its module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ntk_alibi._torch_state import has_values, is_followed
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import NO_BIAS, KernelBias
from ntk_alibi.masks import Problem


@dataclass(eq=False)
class Table:
    """A table of a model, which several layers may share.

    Attributes:
        owner: the module whose relative_attention_bias, an embedding, it is.
        buckets: the number of its rows that count.
        bias: bias(rows) returns the bias of these rows, (buckets, heads), an array or a tensor.
        kept: constant rows and their bias, whose table over distance the steps of a generation
            share, or None.
    """

    owner: nn.Module
    buckets: int
    bias: Callable[[Any], BiasObject]
    kept: tuple[torch.Tensor, BiasObject] | None = field(init=False, default=None)

    def rows(self, device: torch.device) -> torch.Tensor:
        """Return the table as it is now, (buckets, heads)."""
        embedding: Any = self.owner.relative_attention_bias
        rows: torch.Tensor = embedding(torch.arange(self.buckets, device=device))
        return rows

    def rows_gradient(self, problem: Problem, of_distances: NDArray[Any]) -> torch.Tensor:
        """Return the gradient of the rows from the one of the bias, (heads, distances)."""
        heads = len(of_distances)
        indices = np.repeat(np.arange(float(self.buckets))[:, None], heads, axis=1)
        bucket = self.bias(indices).kernel_bias(problem).table.astype(np.int64)
        gradient = np.zeros((self.buckets, heads))
        np.add.at(gradient, (bucket, np.arange(heads)[:, None]), of_distances)
        return torch.from_numpy(gradient)

    def bias_now(self, device: torch.device, rows: torch.Tensor | None = None) -> BiasObject:
        """Return the bias of the table as it is now, or of rows that were read before."""
        rows = self.rows(device) if rows is None else rows
        if rows.requires_grad or not rows.is_cpu or is_followed(rows) or not has_values(rows):
            return self.bias(rows)
        kept = self.kept
        if kept is None or not torch.equal(rows, kept[0]):
            self.kept = kept = rows, self.bias(rows.double().numpy())
        return kept[1]


@dataclass(frozen=True, eq=False)
class LayerTable:
    """The bias of a layer by a table.

    Attributes:
        table: the table.
        first: whether the layer is the first one of a pass that reads it.
    """

    table: Table
    first: bool

    def bias(
        self, kept: dict[Any, Any], device: torch.device, rows: torch.Tensor | None = None
    ) -> BiasObject:
        """Return the bias in a pass, which keeps what its first layer made.

        The others take that, since FSDP may have freed the table meanwhile. Where the first layer
        ran without gradients and this one runs again with them, in the backward pass of reentrant
        checkpointing, it makes a bias of its own.
        """
        recorded = torch.is_grad_enabled()
        of_first = kept.get(self.table)
        if not self.first and of_first is not None and (of_first[1] or not recorded):
            bias: BiasObject = of_first[0]
            return bias
        bias = self.table.bias_now(device, rows)
        if self.first or of_first is None:
            kept[self.table] = bias, recorded
        return bias


@dataclass(frozen=True, eq=False)
class NoBias(BiasObject):
    """The bias of cross-attention: none."""

    num_heads: int

    def __post_init__(self) -> None:
        self.define(num_heads=self.num_heads, sides="symmetric")

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return no bias."""
        del problem, like
        return NO_BIAS
