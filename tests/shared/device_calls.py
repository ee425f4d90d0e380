"""Calls of kernels for other devices, on the CPU: the kernel objects are called themselves.

`FlashAttention("device_calls")` finds a stand-in for flash-attn here: its documented formula in
float64, and the errors of the real one. It follows the documentation of flash_attn_func (flash-attn
2.8): tensors (batch, length, heads, head_dim); a causal mask and windows that are aligned at the
last query and the last key; the bias -slope |i + K - Q - j|.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ntk_alibi._torch_state import Way
from ntk_alibi.fused.call import AttentionCall, all_options, checked_call
from ntk_alibi.fused.tensors.devices.flex import BLOCK, visible_blocks
from ntk_alibi.fused.tensors.devices.score_mods import (
    capture_tensors,
    choose_variant,
    mask_mod,
    score_mod,
)


def device_call(query: Any, key: Any, value: Any, bias: Any = None, **options: Any) -> Any:
    """Return the checked call of the arguments of `na.attention`."""
    return checked_call(query, key, value, bias, all_options(options), Way.DEVICE)


def by_pairs(call: AttentionCall, *, padded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with the scores, masks and blocks that FlexAttention gets, pair by pair in torch.

    Pairs of full blocks are seen for any mask, and pairs of blocks that are neither full
    nor partial are not: this is what FlexAttention's kernels do.
    """
    batch, heads, queries, keys = call.problem.shape
    rows, columns = ((-(-n // BLOCK) * BLOCK if padded else n) for n in (queries, keys))
    captured = capture_tensors(call, rows, columns)
    axes = [torch.arange(n).reshape(-1, *[1] * (3 - i)) for i, n in enumerate((batch, heads))]
    i, j = torch.arange(rows)[:, None], torch.arange(columns)
    pairs = (*axes, i, j)
    group = heads // call.key.shape[1]
    key, value = (
        torch.nn.functional.pad(x, (0, 0, 0, columns - keys)).repeat_interleave(group, 1)
        for x in (call.key, call.value)
    )
    query = torch.nn.functional.pad(call.query, (0, 0, 0, rows - queries))
    variant = choose_variant(call, padded=padded, log=True)
    scores = score_mod(variant, captured)(query @ key.mT, *pairs)
    partial, full = (
        blocks.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, :, :rows, :columns]
        for blocks in visible_blocks(captured)
    )
    seen = full | (partial & mask_mod(captured)(*pairs))
    scores = torch.where(seen, scores, -torch.inf).expand(batch, heads, -1, -1)
    some = ~scores.isneginf().all(-1)
    logsumexp = torch.where(some[..., None], scores, 0.0).logsumexp(-1)
    weights = torch.where(some[..., None], (scores - logsumexp[..., None]).exp(), 0.0)
    logsumexp = torch.where(some, logsumexp, -torch.inf)
    return (weights @ value)[:, :, :queries], logsumexp[:, :, :queries]


#: The arguments of all calls of the stand-in.
FLASH_CALLS: list[dict[str, Any]] = []


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
    FLASH_CALLS.append({"causal": causal, "window_size": window_size, "alibi_slopes": alibi_slopes})
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
