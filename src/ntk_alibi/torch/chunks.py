"""Attention by torch's operations, in chunks of queries, for other devices and for float64."""

from __future__ import annotations

import math

import torch
from torch.utils.checkpoint import checkpoint

from ntk_alibi import _arrays
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.torch.dropout import kept_weights

#: Number of queries in a chunk; only the scores of one chunk are in memory.
QUERY_CHUNK = 256


def attention_by_chunks(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and logsumexp, on any device and in any dtype; no block is skipped.

    Only the scores of QUERY_CHUNK queries are in memory, in the backward pass too. If keys or
    values are not finite, each query is a chunk, so that NaN stays with the queries that see it.
    """
    queries, keys = call.problem.shape[2:]
    key, value = (
        x.repeat_interleave(call.group, dim=1) if call.group > 1 else x
        for x in (call.key, call.value)
    )
    call = call.with_inputs(call.query, key, value)

    def attend(begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _attend_chunk(call.part(slice(begin, end), slice(0, keys)))

    # Within a chunk an infinity or NaN would reach queries that do not see it.
    readable = _arrays.has_values(key, value)
    finite = readable and bool(key.isfinite().all() and value.isfinite().all())
    size = 1 if readable and not finite else QUERY_CHUNK
    chunks = []
    for begin in range(0, max(queries, 1), size):
        end = min(begin + size, queries)
        chunks.append(
            checkpoint(attend, begin, end, use_reentrant=False)
            if torch.is_grad_enabled()
            else attend(begin, end)
        )
    outputs, logsumexps = zip(*chunks, strict=True)
    output = torch.cat(outputs, dim=2)
    if finite and _arrays.has_values(output) and not output.isfinite().all():
        dense = call.bias.dense
        if call.query.isfinite().all() and (dense is None or not dense.isnan().any()):
            raise ValueError(
                "query, key, value, scale and bias must give scores and sums within the range of "
                f"{_arrays.wide_dtype(call.query)}, got finite inputs that exceed it"
            )
    return output, torch.cat(logsumexps, dim=2)


def _attend_chunk(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
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
    logsumexp = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - logsumexp[..., None]) * any_key[..., None]
    if call.dropout is not None:
        weights = torch.where(kept, weights, 0.0) * call.dropout.factor
    output = (weights @ value).to(call.query.dtype)
    return output, torch.where(any_key, logsumexp, -math.inf)
