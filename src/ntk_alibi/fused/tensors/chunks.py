"""Attention by torch's operations, in chunks of queries: for other devices, float64, derivatives.

These operations have every derivative that torch can take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from ntk_alibi import _arrays
from ntk_alibi._torch_state import has_values, in_forward_mode, is_tracing, without_autocast
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.parts import split_queries
from ntk_alibi.fused.tensors.dropout import kept_weights
from ntk_alibi.masks import BlockMask, Cut

Tensors: TypeAlias = tuple[torch.Tensor, ...]

# So that the mask is one of a call's tensors.
_pytree.register_pytree_node(
    BlockMask,
    lambda block_mask: ([block_mask.mask], None),
    lambda given, _: BlockMask(*given),
    flatten_with_keys_fn=lambda x: ([(_pytree.GetAttrKey("mask"), x.mask)], None),
)

#: Number of queries in a chunk; only the scores of one chunk are in memory.
QUERY_CHUNK = 256


def compute_by_chunks(call: AttentionCall, *, log: bool) -> tuple[torch.Tensor, Any]:
    """Return output and, if log, logsumexp, on any device and in any dtype; no block is skipped.

    Only the scores of QUERY_CHUNK queries are in memory, in the backward pass too, which computes
    each chunk again. Forward mode and tracers keep the scores of all chunks that they follow. If
    keys or values are not finite, each query is a chunk, so that NaN stays with the queries that
    see it.
    """
    problem = call.problem
    queries, keys = problem.shape[2:]
    wide = getattr(torch, _arrays.wide_dtype(call.query))
    # Gradients of the chunks are added before they are rounded to a narrower dtype.
    key, value = (
        (x.repeat_interleave(call.group, dim=1) if call.group > 1 else x).to(wide)
        for x in (call.key, call.value)
    )
    call = call.with_inputs(call.query, key, value)
    recorded = torch.is_grad_enabled() and not in_forward_mode() and not is_tracing()
    compute = _compute_again if recorded else _compute_chunk

    # Within a chunk an infinity or NaN would reach queries that do not see it.
    all_finite = key.isfinite().all() & value.isfinite().all()
    readable = has_values(all_finite)
    finite = readable and bool(all_finite)
    size = 1 if readable and not finite else QUERY_CHUNK
    begins, columns = range(0, queries, size), slice(0, keys)
    runs = [(slice(begin, min(begin + size, queries)), columns) for begin in begins]
    if problem.query_positions is problem.key_positions is None and not problem.mask.sees_ahead:
        runs = list(split_queries(problem, None, size - 1))
    parts = [call.cut(Cut(queries=run, keys=seen)) for run, seen in runs] or [call]
    chunks = zip(*(compute(part, log) for part in parts), strict=True)
    output, *logsumexp = (torch.cat(x, dim=2) for x in chunks)
    if finite and has_values(output) and not output.isfinite().all():
        dense = call.bias.dense
        if call.query.isfinite().all() and (dense is None or not dense.isnan().any()):
            raise ValueError(
                "query, key, value, scale and bias must give scores and sums within the range of "
                f"{_arrays.wide_dtype(call.query)}, got finite inputs that exceed it"
            )
    return output, logsumexp[0] if log else None


class _Recomputed(torch.autograd.Function):
    """A function of tensors that keeps its inputs only and runs again in the backward pass.

    So does the function of its gradients, and theirs in turn. torch.utils.checkpoint does the same
    for first gradients, but not under transforms of torch.func.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(function: Callable[..., Tensors], *inputs: torch.Tensor) -> Tensors:
        return function(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.function, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs = ctx.saved_tensors
        function = partial(_gradients, ctx.function, len(inputs))
        found = iter(recomputed(function, *inputs, *gradients))
        return (None, *(next(found) if x.is_floating_point() else None for x in inputs))


recomputed: Callable[..., Tensors] = _Recomputed.apply


def _gradients(function: Callable[..., Tensors], count: int, *given: torch.Tensor) -> Tensors:
    """Return the gradients of a function's floating inputs from its inputs and its gradients."""
    inputs, gradients = given[:count], given[count:]
    floating = [i for i, x in enumerate(inputs) if x.is_floating_point()]

    def of_floating(*values: torch.Tensor) -> Any:
        every = dict(enumerate(inputs)) | dict(zip(floating, values, strict=True))
        return function(*every.values())

    with without_autocast(inputs[0].device.type):
        pull_back = torch.func.vjp(of_floating, *(inputs[i] for i in floating))[1]
        return tuple(pull_back(gradients))


def _compute_again(call: AttentionCall, log: bool) -> Tensors:
    """Attend to a chunk, whose scores are computed again in the backward pass."""
    leaves, structure = _pytree.tree_flatten(call)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i] for i in at]
    for i in at:
        leaves[i] = None  # so that autograd alone keeps tensors

    def compute(*tensors: torch.Tensor) -> Tensors:
        inputs = dict(enumerate(leaves)) | dict(zip(at, tensors, strict=True))
        return _compute_chunk(_pytree.tree_unflatten(list(inputs.values()), structure), log)

    return recomputed(compute, *tensors)


def _compute_chunk(call: AttentionCall, log: bool) -> Tensors:
    """Return the output and, if log, the logsumexp."""
    dtype = getattr(torch, _arrays.wide_dtype(call.query))
    bias, visible = call.bias.pairs(call.problem, call.query)
    kept = visible
    if call.dropout is not None:
        shape = (*call.query.shape[:3], call.key.shape[2])
        kept = visible & kept_weights(call.dropout, shape).to(visible.device)
    # Keys that no query sees, and values that no query reads, may be NaN.
    key, value = (
        torch.where(pairs.any(dim=2)[..., None], x, 0.0).to(dtype)
        for pairs, x in ((visible, call.key), (kept, call.value))
    )
    query = float(call.scale) * call.query.to(dtype)
    if call.factors is not None:
        query = call.factors[..., None] * query
    scores = query @ key.transpose(-1, -2) + bias.to(dtype)
    any_key = visible.any(dim=-1).expand(scores.shape[:-1])
    scores = torch.where(any_key[..., None], scores.masked_fill(~visible, -math.inf), 0.0)
    weights = torch.softmax(scores, dim=-1) * any_key[..., None]
    if call.dropout is not None:
        weights = torch.where(kept, weights, 0.0) * call.dropout.factor
    output = (weights @ value).to(call.query.dtype)
    if not log:
        return (output,)
    return output, torch.where(any_key, torch.logsumexp(scores, dim=-1), -math.inf)
