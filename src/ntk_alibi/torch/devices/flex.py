"""Attention by torch's FlexAttention, compiled once for each variant of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from ntk_alibi import _arrays
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.torch.devices.flash import older_than
from ntk_alibi.torch.devices.score_mods import (
    LAST,
    Numbers,
    Variant,
    captured,
    mask_mod,
    score_mod,
    variant_of,
)

#: Queries, and keys, of a block.
BLOCK = 128

#: Device types of FlexAttention, and whether it has a logsumexp and a backward pass there.
DEVICES = {"cuda": True, "xpu": True, "mps": False, "cpu": False}

#: The least number of channels of Triton's products.
LEAST_CHANNELS = 16

#: The compute capability of the oldest GPUs that torch generates Triton code for.
LEAST_CAPABILITY = (7, 0)

#: Compilations of one variant: for batches of one row and of several, dtypes, and so on.
RECOMPILE_LIMIT = 64

#: Whether this torch can keep the compilations of one variant apart from those of others.
_ISOLATES = "isolate_recompiles" in inspect.signature(torch.compile).parameters


class FlexAttention:
    """FlexAttention with the functions of pairs of score_mods.py. It reads every visible key."""

    def can_run(self, call: AttentionCall, *, log: bool) -> str | None:
        """Return None for a call that FlexAttention can do, or why it cannot, in a sentence."""
        where, dtype = call.query.device, call.query.dtype
        device = where.type
        triton = device in ("cuda", "xpu")
        table = call.bias.table
        reasons = {
            f"FlexAttention has no kernels for {device}": device not in DEVICES,
            f"FlexAttention has no kernels for {dtype}": dtype == torch.float64,
            "this torch is older than 2.13, with which FlexAttention was tested": not _ISOLATES,
            "FlexAttention has no dropout": call.dropout is not None,
            "there are no queries or no keys": 0 in call.problem.shape,
            "no distance is visible": table is not None and table.shape[1] == 0,
            "Triton is not installed": triton and not _has_triton(),
            "torch has no Triton for older GPUs": older_than(LEAST_CAPABILITY, call.query.device),
            f"Triton's products need {LEAST_CHANNELS} channels": triton
            and call.query.shape[3] < LEAST_CHANNELS,
            f"FlexAttention has no logsumexp and no gradients on {device}": (
                not DEVICES.get(device, False) and (log or _sees_gradients(call))
            ),
            "torch maps the call": torch._C._functorch.peek_interpreter_stack() is not None,
            "torch traces the call without Dynamo": (
                _arrays.is_tracing() and not torch.compiler.is_dynamo_compiling()
            ),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def attend(self, call: AttentionCall, *, log: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the output and, with log, the logsumexp."""
        backward = _sees_gradients(call)
        queries = call.problem.shape[2]
        query, key, value = call.query, call.key, call.value
        if backward:  # gradients are NaN for some other lengths (pytorch issue 153799)
            query, key, value = map(_padded, (query, key, value))
        variant = variant_of(call, padded=backward, log=log)
        numbers = captured(call, query.shape[2], key.shape[2])
        attend = _function(variant, query.device.type)
        output, logsumexp = attend(query, key, value, numbers)
        logsumexp = None if logsumexp is None else logsumexp[:, :, :queries].double()
        return output[:, :, :queries], logsumexp


def _padded(x: torch.Tensor) -> torch.Tensor:
    """Return rows (batch, heads, n, head_dim) with 0 up to a multiple of a block; no view.

    Compiled code lost the gradients of captured views on the CPU, so views are copied here, too.
    """
    missing = -x.shape[2] % BLOCK
    return F.pad(x, (0, 0, 0, missing)) if missing else x.clone()


def _function(variant: Variant, device: str) -> Callable[..., Any]:
    """Return a variant's function; while torch traces, it is compiled with its surroundings."""
    return function_of(variant) if _arrays.is_tracing() else _compiled(variant, device)


@functools.cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@functools.cache
def _compiled(variant: Variant, device: str) -> Callable[..., Any]:
    # The code that torch 2.13 generates for the CPU confuses the names of variable lengths.
    dynamic = device != "cpu"
    options: dict[str, Any] = {"recompile_limit": RECOMPILE_LIMIT, "isolate_recompiles": True}
    return torch.compile(function_of(variant), dynamic=dynamic, fullgraph=True, **options)


def _sees_gradients(call: AttentionCall) -> bool:
    """Return whether autograd records a call, for its inputs or its bias."""
    tensors = call.query, call.key, call.value, call.factors, *call.bias.numbers.values()
    return _arrays.is_recorded(*tensors)


def function_of(variant: Variant) -> Callable[..., Any]:
    """Return a function of query, key, value and their numbers."""

    def run(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, numbers: Numbers
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        lengths = query.shape[2], key.shape[2]
        if variant.divided:  # which FlexAttention does for a number of rows that it knows
            torch._dynamo.mark_static(query, 0)
        # The kernel that divides keys has no choice for several queries of many heads to a key.
        options: Any = {"BACKEND": "AUTO" if variant.divided else "TRITON"}
        result: Any = flex_attention(
            query,
            key,
            value,
            score_mod=score_mod(variant, numbers),
            block_mask=block_mask(numbers, lengths, backward=variant.padded),
            scale=1.0,  # a number would be compiled in; it is among the captured numbers
            enable_gqa=query.shape[1] != key.shape[1],
            kernel_options=options,
            return_aux=AuxRequest(lse=True) if variant.log else None,
        )
        return (result[0], result[1].lse) if variant.log else (result, None)

    return run


def block_mask(numbers: Numbers, lengths: tuple[int, int], *, backward: bool) -> BlockMask:
    """Return the blocks that a mask leaves visible, as FlexAttention takes them.

    torch's create_block_mask would ask the mask for every pair.

    Args:
        numbers: the captured numbers of a call.
        lengths: the numbers of queries and of keys.
        backward: whether a backward pass may follow, which needs the blocks by keys, too.
    """
    partial, full = visible_blocks(numbers)
    return BlockMask.from_kv_blocks(
        *_numbered(partial),
        *_numbered(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod(numbers),
        seq_lengths=lengths,
        compute_q_blocks=backward,
    )


def visible_blocks(numbers: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
    """Return masks of blocks, (1 or batch, 1, blocks of queries, blocks of keys).

    In blocks of the first a query may see some keys only; in those of the second every query sees
    all keys. Bounds of positions of a block decide, so the first may be too many, never too few.
    """
    keys, sink = numbers["key_positions"], numbers["sink"]
    real = keys >= 0
    least = _in_blocks(torch.where(real, keys, LAST), LAST).amin(-1)[:, None, None, :]
    most = _in_blocks(keys, -1).amax(-1)[:, None, None, :]
    all_real = _in_blocks(real.int(), 0).amin(-1)[:, None, None, :] > 0
    first = _in_blocks(numbers["first_seen"], LAST).amin(-1)[:, None, :, None]
    last_first = _in_blocks(numbers["first_seen"], -1).amax(-1)[:, None, :, None]
    first_last = _in_blocks(numbers["last_seen"], LAST).amin(-1)[:, None, :, None]
    last = _in_blocks(numbers["last_seen"], -LAST).amax(-1)[:, None, :, None]
    some = (least <= last) & ((most >= first) | (least < sink)) & (most >= 0)
    full = all_real & (most <= first_last) & ((least >= last_first) | (most < sink))
    return some & ~full, full


def _in_blocks(x: torch.Tensor, beyond: int) -> torch.Tensor:
    """Cut rows (1 or batch, n) into blocks, (1 or batch, blocks, BLOCK), filled up by `beyond`."""
    blocks: torch.Tensor = F.pad(x, (0, -x.shape[1] % BLOCK), value=beyond).unflatten(
        1, (-1, BLOCK)
    )
    return blocks


def _numbered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of blocks of keys for each block of queries, and them before the others."""
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32), order.int().contiguous()
