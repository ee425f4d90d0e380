"""Causal attention with a linear bias through torch's fused kernel, without a mask of all pairs.

`scaled_dot_product_attention` adds any mask, but a mask of all pairs costs more memory traffic than
the attention itself. Two facts avoid it:

- The causal linear bias is constant along diagonals. With the queries in reverse order it becomes
  constant along *anti*-diagonals, mask[r, j] = f(r + j), and that is a strided view (1, 1) of one
  vector of Q + K - 1 values.
- Chunks of queries need only the keys up to their last query, so little is computed above the
  diagonal.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

#: Queries per call of torch's kernel: large enough for its blocks of 256 x 512, small enough that a
#: long prompt computes little above the diagonal. 512 to 2048 are within a few percent of each
#: other.
QUERY_CHUNK = 1024


def causal_linear_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """Return softmax(scale q.k - m_h (i - j)) v over the keys j <= i.

    The last query is aligned with the last key.

    Args:
        query: (batch, heads, queries, head_dim), any floating dtype, queries <= keys.
        key: (batch, heads, keys, head_dim).
        value: (batch, heads, keys, head_dim).
        slopes: float32 (1, heads, 1).
        scale: factor of the dot products.

    Returns:
        The output in query's shape and dtype, differentiable in query, key and value.
    """
    query_length, key_length = query.shape[2], key.shape[2]
    chunks = []
    for begin in range(0, query_length, QUERY_CHUNK):
        end = min(begin + QUERY_CHUNK, query_length)
        visible = key_length - query_length + end
        rows = query[:, :, begin:end].flip(2)
        distance = (visible - 1) - torch.arange(end - begin + visible - 1, device=query.device)
        bias = torch.where(distance >= 0, -slopes * distance, -torch.inf).contiguous()
        mask = bias.as_strided(
            (1, bias.shape[1], end - begin, visible), (bias.numel(), bias.shape[2], 1, 1)
        )
        output = F.scaled_dot_product_attention(
            rows, key[:, :, :visible], value[:, :, :visible], attn_mask=mask, scale=scale
        )
        chunks.append(output.flip(2))
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=2)
