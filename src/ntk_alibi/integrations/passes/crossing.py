"""Passes of queries that attend to an encoder's tokens, all without a bias."""

from __future__ import annotations

from typing import Any, cast

import torch

from ntk_alibi._torch_state import is_followed
from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.integrations.passes.inputs import PassInputs
from ntk_alibi.integrations.passes.pairs import problem_of_pairs, read_pairs
from ntk_alibi.integrations.passes.rows import problem_of, real_keys
from ntk_alibi.integrations.tables import NoBias
from ntk_alibi.masks import Mask, Problem

BIDIRECTIONAL = Mask(causal=False)


class CrossingPass(Pass):
    """A pass without a bias."""

    def __init__(self, inputs: PassInputs, real: torch.Tensor, problem: Problem) -> None:
        super().__init__(inputs, real, problem)
        self._none = NoBias(problem.shape[1])
        self.biases_shared = True

    def bias_of(self, layer: int, table: Any = None, rows: Any = None) -> NoBias:
        """Return no bias."""
        del layer, table, rows
        return self._none


def begin(inputs: PassInputs) -> Pass:
    """Return the pass of cross-attention, which the steps of a generation share.

    transformers makes a mask anew for each step, so that it is compared by its values.
    """
    batch, queries, keys = inputs.sizes
    if inputs.masks_pairs:
        shape = batch, inputs.attend.patch.rule.heads, queries, keys
        read = read_pairs(inputs.mask, inputs.name, shape, keys)
        problem = problem_of_pairs(read, shape, BIDIRECTIONAL)
        return CrossingPass(inputs, read.real_keys(batch), problem)
    real = real_keys(inputs, inputs.mask, keys)
    of = inputs.settings, queries, inputs.mask is None
    memory, keeps = inputs.attend.patch.memory, real.is_cpu and not is_followed(real)
    if keeps and memory.crossing is not None:
        made_of, last, forward_pass = memory.crossing
        if made_of == of and torch.equal(last, real):
            return cast(Pass, forward_pass)
    at, unpadded = slice(0, queries), inputs.mask is None
    problem = problem_of(real, at, inputs.attend.patch.rule, BIDIRECTIONAL, unpadded=unpadded)
    forward_pass = CrossingPass(inputs, real, problem)
    if keeps:
        memory.crossing = of, real.clone(), forward_pass  # real may be a user's mask
    return forward_pass
