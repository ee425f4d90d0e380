"""Attention by torch's FlexAttention, compiled once for each variant of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from ntk_alibi._torch_state import is_recorded, is_tracing
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.fused.tensors.devices.flash import is_older_gpu
from ntk_alibi.fused.tensors.devices.score_mods import (
    LAST,
    Captured,
    Variant,
    capture_tensors,
    choose_variant,
    mask_mod,
    score_mod,
)

#: The number of queries, and of keys, of a block.
BLOCK = 128

#: The types of devices that FlexAttention supports, each with whether it has a logsumexp and a
#: backward pass there.
DEVICES = {"cuda": True, "xpu": True, "mps": False, "cpu": False}

#: The fewest channels that Triton multiplies.
LEAST_CHANNELS = 16

#: The compute capability of the oldest GPUs for which torch generates Triton code.
LEAST_CAPABILITY = (7, 0)

#: How often one variant may be compiled: for batches of one row and of several, dtypes, and so on.
RECOMPILE_LIMIT = 64


class FlexAttention:
    """FlexAttention with the functions of score_mods.py. It skips no visible key."""

    def find_obstacle(self, call: AttentionCall, *, log: bool) -> str | None:
        """Return why FlexAttention does not support a call, in a sentence, or None if it does."""
        device, dtype = call.query.device.type, call.query.dtype
        triton = device in ("cuda", "xpu")
        table = call.bias.table
        reasons = {
            f"FlexAttention has no kernels for {device}": device not in DEVICES,
            f"FlexAttention has no kernels for {dtype}": dtype == torch.float64,
            "FlexAttention has no dropout": call.dropout is not None,
            "there are no queries or no keys": 0 in call.problem.shape,
            "no distance is visible": table is not None and table.shape[1] == 0,
            "Triton is not installed": triton and not _has_triton(),
            "torch has no Triton for older GPUs": is_older_gpu(call.query.device, LEAST_CAPABILITY),
            f"Triton's products need {LEAST_CHANNELS} channels": triton
            and call.query.shape[3] < LEAST_CHANNELS,
            f"FlexAttention has no logsumexp and no gradients on {device}": (
                not DEVICES.get(device, False) and (log or _needs_gradients(call))
            ),
            "torch traces the call without Dynamo": (
                is_tracing() and not torch.compiler.is_dynamo_compiling()
            ),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def compute(
        self, call: AttentionCall, *, log: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the output and, if log, the logsumexp."""
        backward = _needs_gradients(call)
        queries = call.problem.shape[2]
        query, key, value = call.query, call.key, call.value
        if backward:  # gradients are NaN for some other lengths (pytorch issue 153799)
            query, key, value = map(_pad_to_block, (query, key, value))
        variant = choose_variant(call, padded=backward, log=log)
        captured = capture_tensors(call, query.shape[2], key.shape[2])
        # While torch traces, the function is compiled with its surroundings.
        traced = is_tracing()
        compute = make_function(variant) if traced else _compiled(variant, query.device.type)
        output, logsumexp = compute(query, key, value, captured)
        logsumexp = None if logsumexp is None else logsumexp[:, :, :queries].double()
        return output[:, :, :queries], logsumexp


def _pad_to_block(x: torch.Tensor) -> torch.Tensor:
    """Append 0 to (batch, heads, n, head_dim) up to a multiple of a block; never return a view.

    Compiled code lost the gradients of captured views on the CPU, so views are copied here, too.
    """
    missing = -x.shape[2] % BLOCK
    return F.pad(x, (0, 0, 0, missing)) if missing else x.clone()


@functools.cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@functools.cache
def _compiled(variant: Variant, device: str) -> Callable[..., Any]:
    # The code that torch 2.13 generates for the CPU confuses the names of variable lengths.
    dynamic = device != "cpu"
    function: Any = make_function(variant)
    # torch counts how often a code object is compiled, and variants share theirs.
    function.__code__ = function.__code__.replace()
    compiled = torch.compile(function, dynamic=dynamic, fullgraph=True)
    limited = torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT)(compiled)
    # Equal lengths would share a symbol, with which torch 2.11 cannot compile the masks of blocks.
    shapes: Any = torch.fx.experimental._config
    compute: Callable[..., Any] = shapes.patch(use_duck_shape=False)(limited)
    return compute


def _needs_gradients(call: AttentionCall) -> bool:
    """Return whether autograd records a call, for its inputs or its bias."""
    tensors = call.query, call.key, call.value, call.factors, *call.bias.arrays.values()
    return is_recorded(*tensors)


def make_function(variant: Variant) -> Callable[..., Any]:
    """Return a variant's function of query, key, value and captured tensors, to be compiled."""

    def run(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, captured: Captured
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        lengths = query.shape[2], key.shape[2]
        if variant.divided:  # FlexAttention divides keys where it knows the number of rows
            torch._dynamo.mark_static(query, 0)
        # The kernel that divides keys has no configuration for several queries where many heads
        # share a key.
        options: Any = {"BACKEND": "AUTO" if variant.divided else "TRITON"}
        if variant.bias == "table" and query.dtype != torch.float32 and not variant.divided:
            # Tiles of 128 by 128 gathered entries exceed an H100's shared memory.
            options |= {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64}
        result: Any = flex_attention(
            query,
            key,
            value,
            score_mod=score_mod(variant, captured),
            block_mask=block_mask(captured, lengths, backward=variant.padded),
            scale=1.0,  # another scale would be compiled in; ours is a captured tensor
            enable_gqa=query.shape[1] != key.shape[1],
            kernel_options=options,
            return_aux=AuxRequest(lse=True) if variant.log else None,
        )
        return (result[0], result[1].lse) if variant.log else (result, None)

    return run


def block_mask(captured: Captured, lengths: tuple[int, int], *, backward: bool) -> BlockMask:
    """Return the visible blocks as FlexAttention takes them.

    torch's create_block_mask would evaluate the mask for every pair.

    Args:
        captured: the captured tensors of a call.
        lengths: how many queries and how many keys there are.
        backward: whether a backward pass may follow, which also needs the blocks by keys.
    """
    partial, full = visible_blocks(captured)
    return BlockMask.from_kv_blocks(
        *_count_and_order(partial),
        *_count_and_order(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod(captured),
        seq_lengths=lengths,
        compute_q_blocks=backward,
    )


def visible_blocks(captured: Captured) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which blocks are partly and which fully visible.

    Both results are (1 or batch, 1 or heads, blocks of queries, blocks of keys). In a fully visible
    block every query sees every key. The bounds of a block's positions decide, so a block may be
    called partly visible that no query sees, but no visible block is left out.
    """
    keys, sink = captured["key_positions"], captured["sink"]
    real = keys >= 0
    least = _split_into_blocks(torch.where(real, keys, LAST), LAST).amin(-1)[:, None, None, :]
    most = _split_into_blocks(keys, -1).amax(-1)[:, None, None, :]
    all_real = _split_into_blocks(real.int(), 0).amin(-1)[:, None, None, :] > 0
    first = _split_into_blocks(captured["first_seen"], LAST).amin(-1)[:, None, :, None]
    last_first = _split_into_blocks(captured["first_seen"], -1).amax(-1)[:, None, :, None]
    first_last = _split_into_blocks(captured["last_seen"], LAST).amin(-1)[:, None, :, None]
    last = _split_into_blocks(captured["last_seen"], -LAST).amax(-1)[:, None, :, None]
    some = (least <= last) & ((most >= first) | (least < sink)) & (most >= 0)
    full = all_real & (most <= first_last) & ((least >= last_first) | (most < sink))
    if "visible" in captured:
        some = some & _blocks_of_pairs(captured["visible"])
        full = full & ~_blocks_of_pairs(~captured["visible"])
    return some & ~full, full


def _blocks_of_pairs(pairs: torch.Tensor) -> torch.Tensor:
    """Return which blocks of (..., queries, keys) have a True, (..., blocks, blocks)."""
    queries, keys = pairs.shape[-2:]
    padded = F.pad(pairs, (0, -keys % BLOCK, 0, -queries % BLOCK))
    blocks: torch.Tensor = padded.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
    return blocks.any(-1).any(-2)


def _split_into_blocks(x: torch.Tensor, beyond: int) -> torch.Tensor:
    """Split (1 or batch, n) into (1 or batch, blocks, BLOCK); the last block ends in `beyond`."""
    blocks: torch.Tensor = F.pad(x, (0, -x.shape[1] % BLOCK), value=beyond).unflatten(
        1, (-1, BLOCK)
    )
    return blocks


def _count_and_order(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each block of queries how many blocks of keys it has, and their order: its first.

    FlexAttention takes a mask of blocks in this form.
    """
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32), order.int().contiguous()
