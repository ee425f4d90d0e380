"""Calls of kernels for other devices, on the CPU: the kernel objects are called themselves."""

from __future__ import annotations

from typing import Any

import torch

from ntk_alibi._torch_state import Way
from ntk_alibi.fused.call import AttentionCall, all_options, checked_call
from ntk_alibi.torch.devices.flex import BLOCK, visible_blocks
from ntk_alibi.torch.devices.score_mods import capture_tensors, choose_variant, mask_mod, score_mod


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
