"""The keys that a query sees, and the blocks that a kernel visits, from positions alone.

Nothing here reads a number of a tensor on the host, and no matrix of all pairs exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from ntk_alibi.torch.devices.score_mods import LAST, Numbers, at

#: Queries, and keys, of a block.
BLOCK = 128

#: A function of batch row, head, query and key, which says whether the query sees the key.
MaskMod = Callable[[Any, Any, Any, Any], Any]


class Blocks(NamedTuple):
    """Masks of blocks, (1 or batch, 1 or heads, blocks of queries, blocks of keys).

    Attributes:
        partial: blocks in which a query may see some keys only.
        full: blocks in which every query sees all keys.
    """

    partial: torch.Tensor
    full: torch.Tensor

    def kept(self, keep: torch.Tensor) -> Blocks:
        """Return those of the blocks that a mask keeps."""
        return Blocks(self.partial & keep, self.full & keep)


def visible_blocks(numbers: Numbers) -> Blocks:
    """Return the blocks that a mask leaves visible.

    Bounds of positions of a block decide. Partial blocks may thus be too many, never too few.
    """
    keys = numbers["key_positions"]
    real = keys >= 0
    least = in_blocks(torch.where(real, keys, LAST), LAST).amin(-1)[:, None, None, :]
    most = in_blocks(keys, -1).amax(-1)[:, None, None, :]
    all_real = in_blocks(real.int(), 0).amin(-1)[:, None, None, :] > 0
    first, last = numbers["first_seen"], numbers["last_seen"]
    first_least = in_blocks(first, LAST).amin(-1)[:, None, :, None]
    first_most = in_blocks(first, -1).amax(-1)[:, None, :, None]
    last_least = in_blocks(last, LAST).amin(-1)[:, None, :, None]
    last_most = in_blocks(last, -LAST).amax(-1)[:, None, :, None]
    sink = numbers["sink"]
    some = (least <= last_most) & ((most >= first_least) | (least < sink)) & (most >= 0)
    full = all_real & (most <= last_least) & ((least >= first_most) | (most < sink))
    return Blocks(some & ~full, full)


def mask_mod(numbers: Numbers) -> MaskMod:
    """Return the function that says which keys a query sees, for every mask and padding."""

    def visible(batch: Any, head: Any, row: Any, column: Any) -> Any:
        del head
        key = at(numbers["key_positions"], batch, column)
        near = (key >= at(numbers["first_seen"], batch, row)) | (key < numbers["sink"])
        return near & (key >= 0) & (key <= at(numbers["last_seen"], batch, row))

    return visible


def block_mask(
    blocks: Blocks, mask: MaskMod, lengths: tuple[int, int], *, backward: bool
) -> BlockMask:
    """Return blocks as FlexAttention takes them.

    Args:
        blocks: the blocks.
        mask: says which keys of a partial block a query sees.
        lengths: the numbers of queries and of keys.
        backward: whether a backward pass may follow, which needs the blocks by keys, too.
    """
    return BlockMask.from_kv_blocks(
        *_numbered(blocks.partial),
        *_numbered(blocks.full),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask,
        seq_lengths=lengths,
        compute_q_blocks=backward,
    )


def _numbered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of blocks of keys for each block of queries, and them before the others."""
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32), order.int().contiguous()


def in_blocks(x: torch.Tensor, beyond: float, axis: int = 1) -> torch.Tensor:
    """Cut an axis into blocks, whose numbers follow in an axis of their own.

    `beyond` fills the last block.
    """
    count = -(-x.shape[axis] // BLOCK)
    padding = [0, 0] * (x.ndim - 1 - axis) + [0, count * BLOCK - x.shape[axis]]
    blocks: torch.Tensor = F.pad(x, padding, value=beyond).unflatten(axis, (count, BLOCK))
    return blocks
