"""Causal attention with a linear bias through torch's fused kernel, without a mask of all pairs.

`scaled_dot_product_attention` adds any mask, but a mask of all pairs costs more memory traffic than
the attention itself. Two facts avoid it:

- The causal linear bias is constant along diagonals. With the queries in reverse order it becomes
  constant along *anti*-diagonals, mask[r, j] = f(r + j), and that is a strided view (1, 1) of one
  vector of Q + K - 1 values.
- Chunks of queries need only the keys up to their last query, so little is computed above the
    diagonal.

Distances are exact and the bias is float32 whatever the dtype of the inputs.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional as F

from ntk_alibi.scaling import Bend
from ntk_alibi.torch.streaming_mask import StreamingMask

#: Queries per call of torch's kernel: large enough for its blocks of 256 x 512, small enough that a
#: long prompt computes little above the diagonal. 512 to 2048 are within a few percent of each
#: other.
QUERY_CHUNK = 1024

#: Queries per call where a mask of all pairs is built: few, since it has a row for each of them.
PAIRS_CHUNK = 256


def causal_linear_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    *,
    scale: float,
    dropout: float = 0.0,
    streaming: StreamingMask | None = None,
    positions: torch.Tensor | None = None,
    bend: Bend | None = None,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return softmax(f_i scale q.k - m_h (i - j)) v over the keys j <= i; a knee bends i - j.

    The last query is aligned with the last key. A `StreamingMask` limits the keys and shrinks
    distances to sinks; each chunk of queries then has a dense mask of the keys that it sees.

    Args:
        query: (batch, heads, queries, head_dim), any floating dtype, queries <= keys.
        key: (batch, heads, keys, head_dim).
        value: (batch, heads, keys, head_dim).
        slopes: float32 (1 or batch, heads, 1 or queries).
        scale: factor of the dot products.
        dropout: probability of dropping a weight.
        streaming: the mask of the queries, or None for all keys behind them.
        positions: integers (keys,), ascending, needed with streaming.
        bend: a knee, or None.
        factors: float32 (1 or batch, 1 or heads, queries) factors f of the scores, or None for 1.

    Returns:
        The output in query's shape and dtype, differentiable in query, key and value.
    """
    query_length, key_length = query.shape[2], key.shape[2]
    if query.numel() == 0:
        return query
    if factors is not None:
        dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
        query, key, value = (x.to(wide) for x in (query, key, value))
        return causal_linear_attention(
            query * factors[..., None], key, value, slopes, scale=scale, dropout=dropout,
            streaming=streaming, positions=positions, bend=bend,
        ).to(dtype)  # fmt: skip
    per_query = slopes.shape[2] > 1
    if streaming is not None and positions is not None:
        return _attend_dense(query, key, value, slopes, scale, dropout, streaming, positions, bend)
    if bend is not None and (per_query or bend.varies):
        everything, positions = StreamingMask(), torch.arange(key_length, device=query.device)
        return _attend_dense(query, key, value, slopes, scale, dropout, everything, positions, bend)
    attend = _attend_per_query if per_query else partial(_attend_per_head, bend=bend)
    chunks = []
    for begin in range(0, query_length, QUERY_CHUNK):
        end = min(begin + QUERY_CHUNK, query_length)
        visible = key_length - query_length + end
        chunks.append(
            attend(
                query[:, :, begin:end],
                key[:, :, :visible],
                value[:, :, :visible],
                slopes[:, :, begin:end] if per_query else slopes,
                scale,
                dropout,
            )
        )
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=2)


def _attend_dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    scale: float,
    dropout: float,
    streaming: StreamingMask,
    positions: torch.Tensor,
    bend: Bend | None,
) -> torch.Tensor:
    """Attend from chunks of queries to the keys that the chunk sees, with a mask of all pairs."""
    past = key.shape[2] - query.shape[2]
    sinks = int((positions < streaming.mask.sink).sum())
    chunks = []
    for begin in range(0, query.shape[2], PAIRS_CHUNK):
        end = min(begin + PAIRS_CHUNK, query.shape[2])
        rows = positions[past + begin : past + end]
        first = max(sinks, int((positions < streaming.start(rows[0])).sum()))
        columns = torch.arange(past + end, device=query.device)
        columns = columns[(columns < sinks) | (columns >= first)]
        distance, seen = streaming.distances(rows, positions[columns])
        part = slopes[:, :, begin:end] if slopes.shape[2] > 1 else slopes
        if bend is not None:
            distance = bend.of_queries(slice(begin, end)).bent(distance)
        distance = distance[:, None] if distance.ndim == 3 else distance
        bias = _for_kernel(torch.where(seen, -part[..., None] * distance, -torch.inf), query)
        chunks.append(
            F.scaled_dot_product_attention(
                query[:, :, begin:end],
                key[:, :, columns],
                value[:, :, columns],
                attn_mask=bias,
                dropout_p=dropout,
                scale=scale,
            )
        )
    return torch.cat(chunks, dim=2)


def _attend_per_head(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    scale: float,
    dropout: float,
    bend: Bend | None,
) -> torch.Tensor:
    distance = _anti_diagonal_distances(query, key)
    weighed = distance if bend is None else bend.bent(distance)
    bias = torch.where(distance >= 0, -slopes * weighed, -torch.inf)
    return _reversed_sdpa(query, key, value, bias, scale, dropout)


def _attend_per_query(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    scale: float,
    dropout: float,
) -> torch.Tensor:
    """Attend with the bias m_i (j - last) as one more channel of q and k.

    With a slope for each query the bias is not constant along diagonals. The channel is float32,
    since lower precisions cannot hold positions. Positions count from the chunk's last key, so that
    products of near keys stay small.
    """
    last = key.shape[2] - 1
    positions = torch.arange(-last, 1, device=key.device, dtype=torch.float32)
    query_channel = (slopes / scale).expand(query.shape[:3])[..., None]
    key_channel = positions[:, None].expand(*key.shape[:3], 1)
    distance = _anti_diagonal_distances(query, key)
    mask = torch.where(distance >= 0, 0.0, -torch.inf)[None, None]
    output = _reversed_sdpa(
        torch.cat([query.float(), query_channel], dim=-1),
        torch.cat([key.float(), key_channel], dim=-1),
        F.pad(value.float(), (0, 1)),
        mask,
        scale,
        dropout,
    )
    return output[..., :-1].to(query.dtype)


def _anti_diagonal_distances(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return d[r + j] = i - j, where r numbers the queries from the last one on."""
    query_length, key_length = query.shape[2], key.shape[2]
    diagonals = torch.arange(query_length + key_length - 1, device=query.device)
    return (key_length - 1) - diagonals


def _reversed_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    diagonal_bias: torch.Tensor,
    scale: float,
    dropout: float,
) -> torch.Tensor:
    """Call torch's kernel on reversed queries.

    diagonal_bias, (1 or batch, 1 or heads, queries + keys - 1), is expanded to a mask by strides.
    """
    batch, heads, diagonals = diagonal_bias.shape
    bias = _for_kernel(diagonal_bias.contiguous(), query)
    mask = bias.as_strided(
        (batch, heads, query.shape[2], key.shape[2]), (heads * diagonals, diagonals, 1, 1)
    )
    output = F.scaled_dot_product_attention(
        query.flip(2), key, value, attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return output.flip(2)


def _for_kernel(bias: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return a bias in the query's dtype, unless on the CPU: other kernels need one dtype."""
    return bias if bias.device.type == "cpu" else bias.to(query.dtype)
