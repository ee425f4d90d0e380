"""Bias objects in kernel form, as tensors that autograd can follow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ntk_alibi.biases import checks as bias_checks
from ntk_alibi.biases.alibi import ALiBi
from ntk_alibi.biases.base import KernelBias
from ntk_alibi.biases.bialibi import BiALiBi
from ntk_alibi.biases.distance import DistanceBias
from ntk_alibi.biases.forget_gates import ForgetGates
from ntk_alibi.biases.slopes import both_sides, hidden_sides, scaling_per, with_axes
from ntk_alibi.fused.options import Options, checked_problem
from ntk_alibi.masks import Problem
from ntk_alibi.scaling import scaling_from_config
from ntk_alibi.torch import checks


@torch.library.custom_op(
    "ntk_alibi::slopes",
    mutates_args=(),
    schema="(Tensor like, int num_heads, str alibi_type, float factor, str sides)"
    " -> (Tensor, Tensor)",
)
def constant_slopes(
    like: torch.Tensor, num_heads: int, alibi_type: str, factor: float, sides: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Left and right slopes (1, heads, 1): a constant that tracing would have to look into."""
    config = {"alibi_type": alibi_type} | ({} if alibi_type == "default" else {"factor": factor})
    bias = ALiBi(num_heads, scaling_from_config(config), sides=sides)
    left, right = (torch.tensor(x, device=like.device) for x in bias.left_right(1, None))
    return left, right


@constant_slopes.register_fake
def _(like: torch.Tensor, num_heads: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (1, num_heads, 1)
    return like.new_empty(shape, dtype=torch.float32), like.new_empty(shape, dtype=torch.float32)


def bias_tensors(
    bias: Any, query: torch.Tensor, shape: tuple[int, ...], options: Options
) -> KernelBias:
    """A bias as the kernels take it, as tensors that know where they come from."""
    if isinstance(bias, ALiBi):
        left, right = (side.to(query.device) for side in _slopes(bias, query, shape, options))
        return KernelBias(left=left, right=right, exempt=bias.exempt)
    if isinstance(bias, BiALiBi):
        first, left, right = (
            torch.as_tensor(np.array(x) if isinstance(x, np.ndarray) else x).to(
                query.device, wide_dtype(query)
            )
            for x in (bias.first, bias.left, bias.right)
        )
        return KernelBias(left=with_axes(left), right=with_axes(right), exempt=1, first=first)
    if isinstance(bias, DistanceBias):
        return _table(bias, query, traced_problem(options, shape, lengths_only=True))
    if isinstance(bias, ForgetGates):
        sums = bias.running_sums(traced_problem(options, shape), query)
        return KernelBias(sums=sums)
    if bias is None:
        return KernelBias()
    dense = torch.as_tensor(bias, device=query.device)
    if dense.requires_grad:  # torch sums over what was broadcast
        dense = dense.expand(shape)
    return KernelBias(dense=dense)


def _slopes(
    bias: ALiBi, query: torch.Tensor, shape: tuple[int, ...], options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """Left and right slopes as tensors that know where they come from."""
    if bias.slopes is None and torch.compiler.is_compiling():
        checks.constant_scaling(bias.scaling)
        kind = getattr(bias.scaling, "alibi_type", "default")
        factor = float(getattr(bias.scaling, "factor", 1.0))
        traced: tuple[torch.Tensor, torch.Tensor] = constant_slopes(
            query.detach(), bias.num_heads, kind, factor, bias.sides
        )
        return traced
    if bias.slopes is None:
        counts = scaling_per(bias.scaling) is not None
        numbers = bias.kernel_bias(checked_problem(options, shape) if counts else Problem(shape))
        return torch.from_numpy(np.array(numbers.left)), torch.from_numpy(np.array(numbers.right))
    left, right = (
        with_axes(torch.as_tensor(x).to(wide_dtype(query))) for x in both_sides(bias.slopes)
    )
    bias_checks.slope_shapes(tuple(left.shape), tuple(right.shape), shape[2])
    bias_checks.slope_batch(max(left.shape[0], right.shape[0]), shape[0])
    hidden = torch.as_tensor(hidden_sides(bias.sides, bias.num_heads), device=left.device)
    return left.masked_fill(hidden[0], math.inf), right.masked_fill(hidden[1], math.inf)


def wide_dtype(tensor: torch.Tensor) -> torch.dtype:
    """float64 for that, else float32: in which biases are added, and have their gradients."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def traced_problem(
    options: Options, shape: tuple[int, ...], *, lengths_only: bool = False
) -> Problem:
    """The checked problem, of which tracing knows only the lengths."""
    if not torch.compiler.is_compiling():
        return checked_problem(options, shape)
    if lengths_only:
        checks.known_positions(options.query_positions, options.key_positions)
    rule = (options.causal, options.window, options.causal_block, options.sink, options.align)
    placed = options.query_positions is not None
    return Problem(shape, *rule, mask=options.key_padding_mask, placed=placed)


def _table(bias: DistanceBias, query: torch.Tensor, problem: Problem) -> KernelBias:
    first, last = problem.distances()
    bias_checks.span((first, last))
    constant = not any(isinstance(x, torch.Tensor) for x in bias.parameters)
    if constant and not torch.compiler.is_compiling() and query.dtype != torch.float64:
        kept = bias.kernel_bias(problem)
        table = torch.tensor(kept.table, device=query.device)
    else:
        table = bias.over(first, last, query).to(wide_dtype(query))
    return KernelBias(table=table, table_begin=first)
