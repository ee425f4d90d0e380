"""The linear bias of one forward pass, in kernel form for all of its layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ntk_alibi import _arrays
from ntk_alibi.biases.alibi import bent
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.integrations.forward_pass import ForwardPass
from ntk_alibi.masks import Problem
from ntk_alibi.scaling import Bend


@dataclass(frozen=True, eq=False, repr=False)
class PassBias(BiasObject):
    """A causal linear bias of known slopes and a known knee.

    Its kernel form is made once for the layers of a pass, in place of once for each layer.

    Attributes:
        slopes: float32 (1 or batch, heads, 1 or queries).
        bend: the knee, or None.
    """

    slopes: torch.Tensor
    bend: Bend | None
    _core_forms: dict[tuple[int, ...], KernelBias] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.define(num_heads=self.slopes.shape[1], sides="causal")

    @property
    def parameters(self) -> tuple[Any, ...]:
        """Nothing: the numbers follow from the pass, whose ranks compare their patches."""
        return ()

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the slopes in kernel form; for NumPy in the core's form, too."""
        if like is not None:
            return self._made(_arrays.as_tensor(self.slopes, like, _arrays.wide_dtype(like)))
        if problem.shape not in self._core_forms:
            made = self._made(_arrays.to_numpy(self.slopes)).checked(problem)
            self._core_forms[problem.shape] = made._replace(core=made.in_core(problem.shape))
        return self._core_forms[problem.shape]

    def _made(self, slopes: Any) -> KernelBias:
        hidden = _arrays.namespace(slopes).full_like(slopes[:1, :, :1], np.inf)
        bias = KernelBias(slopes, hidden)
        return bias if self.bend is None else bent(bias, self.bend)


def bias_of_pass(forward_pass: ForwardPass) -> PassBias:
    """Return the bias of a pass; its layers share one by `ForwardPass.memo`."""
    real, queries = forward_pass.real, forward_pass.queries
    slopes = forward_pass.biased(forward_pass.slopes(real, queries), forward_pass.factors)
    return PassBias(slopes, forward_pass.bend(real, queries))
