"""A stand-in for flash-attn: its documented formula in float64, and the errors of the real one.

It follows the documentation of flash_attn_func (flash-attn 2.8): tensors (batch, length, heads,
head_dim); a causal mask and windows that are aligned at the last query and the last key; the bias
-slope |i + K - Q - j|.
"""

from __future__ import annotations

import math
from typing import Any

import torch

#: The arguments of all calls.
CALLS: list[dict[str, Any]] = []


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor:
    """Return the attention of q, k and v."""
    assert dropout_p == softcap == 0.0
    assert not deterministic
    assert not return_attn_probs
    (batch, queries, heads, head_dim), dtype = q.shape, q.dtype
    keys, key_heads = k.shape[1:3]
    if q.dtype not in (torch.float16, torch.bfloat16) or {k.dtype, v.dtype} != {q.dtype}:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if head_dim > 256 or heads % key_heads:
        raise RuntimeError("head dimension or number of heads")
    if any(x.stride(-1) != 1 for x in (q, k, v)):
        raise RuntimeError("Input tensor must have contiguous last dimension")
    if alibi_slopes is not None:
        if alibi_slopes.dtype != torch.float32 or alibi_slopes.stride(-1) != 1:
            raise RuntimeError("ALiBi slopes must have dtype fp32")
        if alibi_slopes.shape not in ((heads,), (batch, heads)):
            raise RuntimeError("ALiBi slopes must have shape (heads,) or (batch, heads)")
    CALLS.append({"causal": causal, "window_size": window_size, "alibi_slopes": alibi_slopes})
    scale = 1 / math.sqrt(head_dim) if softmax_scale is None else softmax_scale
    q, k, v = (x.transpose(1, 2).double() for x in (q, k, v))
    k, v = (x.repeat_interleave(heads // key_heads, 1) for x in (k, v))
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    scores = scale * q @ k.mT
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double().reshape(-1, heads, 1, 1) * distance.abs()
    left, right = window_size
    right = 0 if causal else right
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    hidden |= (distance > left) if left >= 0 else False
    hidden |= (-distance > right) if right >= 0 else False
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(nan=0.0)
    output: torch.Tensor = (weights @ v).transpose(1, 2).to(dtype)
    return output
