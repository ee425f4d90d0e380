"""Attention of new tokens, which all ranks compute, to keys that are spread over the ranks.

Each rank attends to the keys that it holds, and the ranks merge their results. A rank whose keys
are proven to weigh nothing says so by one byte in place of its result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.distributed import bounds
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.fused.key_norms import BLOCK, KeyNorms
from ntk_alibi.fused.merge import merge
from ntk_alibi.masks import Problem

#: What a rank's own call may leave out; the keys of all ranks that send nothing have the other half
#: of the rounding of a float32 sum.
OWN_SHARE = _core.dropped_share(0.0) / 2


class KeyWeightBounds:
    """Upper bounds of the weight of a rank's keys in one forward pass.

    Args:
        size: number of ranks.
        problem: the new tokens and the keys that this rank holds, in NumPy, with positions of both.
        new: whether each new token is real, (1 or batch, queries).
        bias: the kernel form of a bias of the new tokens.

    Attributes:
        may_be_silent: whether the keys are so far that a proof is worth its time.
    """

    def __init__(
        self, size: int, problem: Problem, new: NDArray[np.bool_], bias: KernelBias
    ) -> None:
        self._mask, self._new = problem.mask, new
        self._share = OWN_SHARE / max(size - 1, 1)
        self._bias = bounds.BiasBounds(bias, BLOCK)
        at, keys = problem.positions()
        self._tiles = bounds.tile_positions(at, problem.mask, BLOCK)
        self._blocks = bounds.block_positions(keys, problem.key_padding_mask > 0, BLOCK)
        self.may_be_silent = self._far()

    def _far(self) -> bool:
        """Return whether the bias of the nearest visible key is half of what a proof needs."""
        count = self._blocks[0].shape[-1]
        none = np.zeros((1, 1, count), np.float32)
        blocks = bounds.KeyBlocks(none, none[..., :1], *self._blocks)
        tiles = bounds.QueryTiles(np.zeros(0), np.zeros(0), **self._tiles)
        seen = bounds.visible_blocks(tiles, blocks, self._mask)
        if not self._bias.proven or not seen.any():
            return not bool(seen.any())
        apart = self._tiles["first"][:, :, None] - self._blocks[1][:, None]
        nearest = float(np.where(seen, apart, bounds.NOWHERE).min())
        return self._bias.at_least(nearest) < math.log(self._share) / 2

    def silent(
        self, query: torch.Tensor, key: torch.Tensor, factors: Any, scale: float, norms: KeyNorms
    ) -> bool:
        """Return whether this rank's keys together weigh too little for every head and row.

        A new token sees itself without a bias, so that the score of its own key bounds the sum over
        the keys of all ranks from below. The rank that holds the key thus never is silent.

        Args:
            query: the new queries, (batch, heads, queries, head_dim).
            key: the new keys, (batch, key heads, queries, head_dim).
            factors: factors of the dot products, (1 or batch, 1 or heads, queries), or None.
            scale: factor of the dot products.
            norms: norms of this rank's keys.
        """
        wide = query.double() * scale
        if factors is not None:
            wide = wide * factors.double()[..., None]
        group = query.shape[1] // max(key.shape[1], 1)
        centres = torch.from_numpy(norms.centres).double().repeat_interleave(group, 1)
        own = (wide * key.double().repeat_interleave(group, 1)).sum(-1)
        shift = (wide * centres[:, :, None]).sum(-1)
        known = torch.from_numpy(self._new)[:, None] & own.isfinite() & shift.isfinite()
        ulp = 16 * np.finfo(np.float64).eps
        room = shift - own + ulp * query.shape[3] * (shift.abs() + own.abs())
        room = room + _core.exp2_and_sum_error
        room = torch.where(known, room, torch.inf)
        lengths = _arrays.to_numpy(wide.norm(dim=-1)) * bounds.NORM_SLACK
        count = self._blocks[0].shape[-1]
        tiles = bounds.QueryTiles(
            bounds.by_tile(lengths, BLOCK, np.max, 0.0),
            bounds.by_tile(_arrays.to_numpy(room), BLOCK, np.max, -np.inf)[None],
            **self._tiles,
        )
        greatest = norms.norms[:, :, :count, 0] * np.float32(bounds.NORM_SLACK)
        greatest = greatest + np.float32(_core.underflowed_norm)
        blocks = bounds.KeyBlocks(greatest, norms.centres, *self._blocks)
        return bounds.none_needed(tiles, blocks, self._bias, self._mask, self._share)


def merged(
    ranks: Ranks, output: torch.Tensor, logsumexp: torch.Tensor, flags: list[bool]
) -> torch.Tensor:
    """Return the float32 output over the keys of all ranks that are not silent, in their order.

    Args:
        ranks: the processes.
        output: this rank's output, (batch, heads, queries, head_dim).
        logsumexp: this rank's logsumexp, (batch, heads, queries).
        flags: whether each rank is silent, the same on all ranks.
    """
    packed = torch.cat([output.float(), logsumexp.float()[..., None]], -1)
    parts = _from_some(ranks, packed, flags) if any(flags) else ranks.gather(packed)
    if not parts:  # no new token sees any key
        return torch.zeros_like(output, dtype=torch.float32)
    result, _ = merge([x[..., :-1] for x in parts], [x[..., -1].contiguous() for x in parts])
    return torch.as_tensor(result)


def _from_some(ranks: Ranks, packed: torch.Tensor, flags: list[bool]) -> list[torch.Tensor]:
    """Return the tensors of the ranks that are not silent; others send nothing."""
    count, speak = packed.numel(), [not silent for silent in flags]
    others = [rank != ranks.rank for rank in range(ranks.size)]
    outgoing = [count * (speak[ranks.rank] and other) for other in others]
    incoming = [count * (said and other) for said, other in zip(speak, others, strict=True)]
    copies = packed.reshape(1, -1).expand(sum(x > 0 for x in outgoing), -1).reshape(-1)
    arrived = ranks.exchange(copies.contiguous(), outgoing, incoming)
    parts = [x.view_as(packed) if x.numel() else None for x in arrived.split(incoming)]
    if speak[ranks.rank]:
        parts[ranks.rank] = packed
    return [x for x in parts if x is not None]
