"""Attention by torch's own operations, some queries at a time: other devices, and float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ntk_alibi.biases.base import KernelBias
from ntk_alibi.fused.options import Options

#: Queries whose scores exist at one time where torch's own operations do the work.
QUERY_CHUNK = 256


def attention_by_chunks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: KernelBias,
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by torch's own operations, on any device and in float64 too; skips nothing.

    Scores of QUERY_CHUNK queries exist at one time, in the backward pass too. options.scale is
    given.
    """
    queries = query.shape[2]
    query_positions, key_positions = pair_positions(query, key, options)
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (key, value))

    def attend(begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = query_positions[..., begin:end], key_positions
        own = _of_queries(bias, begin, end, queries)
        return _attend_chunk(query[:, :, begin:end], key, value, own, positions, options)

    chunks = []
    for begin in range(0, max(queries, 1), QUERY_CHUNK):
        end = min(begin + QUERY_CHUNK, queries)
        chunks.append(
            checkpoint(attend, begin, end, use_reentrant=False)
            if torch.is_grad_enabled()
            else attend(begin, end)
        )
    outputs, logsumexps = zip(*chunks, strict=True)
    return torch.cat(outputs, dim=2), torch.cat(logsumexps, dim=2)


def _of_queries(bias: KernelBias, begin: int, end: int, queries: int) -> KernelBias:
    """The bias of some of the queries; running sums as their differences."""

    def part(x: torch.Tensor | None) -> torch.Tensor | None:
        return x if x is None or x.shape[2] == 1 else x[:, :, begin:end]

    dense, sums = bias.dense, bias.sums
    if dense is not None and dense.ndim > 1 and dense.shape[-2] != 1:
        dense = dense[..., begin:end, :]
    if sums is not None:
        first = sums.shape[2] - queries
        sums = sums[..., first + begin : first + end, None] - sums[..., None, :]
        return KernelBias(dense=sums)
    return bias._replace(left=part(bias.left), right=part(bias.right), dense=dense)


def _attend_chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: KernelBias,
    positions: tuple[torch.Tensor, torch.Tensor],
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    q, k = (x[None, None] if x.ndim == 1 else x[:, None] for x in positions)
    distance = q[..., :, None] - k[..., None, :]
    visible = visible_pairs(q, k, distance, options)
    numbers, visible = _bias_and_visible(bias, (q, k), distance, visible, dtype)
    seen = visible.any(dim=2)[..., None]  # what nobody sees may be NaN
    key, value = (torch.where(seen, x, 0.0).to(dtype) for x in (key, value))
    scores = float(options.scale or 0.0) * query.to(dtype) @ key.transpose(-1, -2) + numbers
    some = visible.any(dim=-1).expand(scores.shape[:-1])
    scores = torch.where(some[..., None], scores.masked_fill(~visible, -math.inf), 0.0)
    logsumexp = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - logsumexp[..., None]) * some[..., None]
    return (weights @ value).to(query.dtype), torch.where(some, logsumexp, -math.inf)


def _bias_and_visible(
    bias: KernelBias,
    positions: tuple[torch.Tensor, torch.Tensor],
    distance: torch.Tensor,
    visible: torch.Tensor,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bias with 0 where it is infinite, which hides, and what is still visible."""
    left, right, dense = bias.left, bias.right, bias.dense
    if left is not None:
        behind, ahead = distance > 0, distance < 0
        hidden = (left.isinf()[..., None] & behind) | (right.isinf()[..., None] & ahead)
        left, right = (x.masked_fill(x.isinf(), 0.0).to(dtype)[..., None] for x in (left, right))
        numbers = torch.where(behind, -left, right) * distance
        if bias.exempt:
            q, k = positions
            exempt = (q[..., :, None] < bias.exempt) | (k[..., None, :] < bias.exempt)
            constant: Any = 0.0 if bias.first is None else -bias.first.to(dtype)[:, None, None]
            numbers = torch.where(exempt, torch.where(distance == 0, 0.0, constant), numbers)
        return numbers, visible & ~hidden
    size = 0 if bias.table is None else bias.table.shape[1]
    if size:  # else nothing is visible
        index = (distance[:, 0] - bias.table_begin).clamp(0, size - 1)  # others are not visible
        dense = bias.table[:, index].transpose(0, 1)
    if dense is not None:
        none = dense.isneginf()
        return dense.masked_fill(none, 0.0).to(dtype), visible & ~none
    return torch.zeros((), dtype=dtype, device=distance.device), visible


def pair_positions(
    query: torch.Tensor, key: torch.Tensor, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of queries and keys, (length,) or (batch, length)."""
    queries, keys = query.shape[2], key.shape[2]
    key_positions, query_positions = options.key_positions, options.query_positions
    if key_positions is None:
        key_positions = torch.arange(keys, device=query.device)
        if query_positions is None:
            query_positions = torch.arange(keys - queries, keys, device=query.device)
    elif query_positions is None:
        query_positions = key_positions[..., keys - queries :]
    return query_positions, key_positions


def visible_pairs(
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    distance: torch.Tensor,
    options: Options,
) -> torch.Tensor:
    """Which keys each query sees, (1 or batch, 1, queries, keys)."""
    seen = torch.ones_like(distance, dtype=torch.bool)
    if options.window is not None:
        seen = distance.abs() < options.window
    if options.causal_block is not None:
        own, other = (
            x.div(options.causal_block, rounding_mode="floor")
            for x in (query_positions, key_positions)
        )
        seen = seen & (own[..., :, None] - other[..., None, :] <= 1)
    if options.sink:
        seen = seen | ((key_positions < options.sink)[..., None, :] & (distance >= 0))
    if options.causal:
        seen = seen & (distance >= 0)
    if options.key_padding_mask is not None:
        seen = seen & options.key_padding_mask.bool()[:, None, None, :]
    return seen
