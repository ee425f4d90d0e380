"""Attention from new tokens, which all ranks have, to keys that are spread over the ranks.

Each rank attends to its keys, and the ranks merge their results. A rank whose keys provably change
nothing sends one byte in place of its result.
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

#: The share of the weights that a rank may skip among its keys: half of what the rounding of a
#: float32 sum hides. The other half is for the keys of all ranks that send nothing.
OWN_SHARE = _core.dropped_share(0.0) / 2


class KeyWeightBounds:
    """Upper bounds of the weights of a rank's keys in one pass.

    Args:
        size: number of ranks.
        problem: the new tokens and this rank's keys, in NumPy, with positions of both.
        new: whether each new token is real, (1 or batch, queries).
        bias: the kernel form of a bias, for the new tokens.

    Attributes:
        may_be_negligible: whether the keys are so far away that a proof is worth its time.
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
        self.may_be_negligible = self._is_far()

    def _is_far(self) -> bool:
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
        return self._bias.beyond(nearest) < math.log(self._share) / 2

    def is_negligible(
        self, query: torch.Tensor, key: torch.Tensor, factors: Any, scale: float, norms: KeyNorms
    ) -> bool:
        """Return whether this rank's keys together change no result of any head and row.

        A new token sees itself without a bias, so the score of its own key is a lower bound of the
        sum over the keys of all ranks. The rank that has this key is never negligible.

        Args:
            query: the new queries, (batch, heads, queries, head_dim).
            key: the new keys, (batch, key heads, queries, head_dim).
            factors: factors of the dot products, (1 or batch, 1 or heads, queries), or None.
            scale: another factor of the dot products.
            norms: norms of this rank's keys.
        """
        wide = query.double() * scale
        if factors is not None:
            wide = wide * factors.double()[..., None]
        group = query.shape[1] // max(key.shape[1], 1)
        centres = torch.from_numpy(norms.centres).double().repeat_interleave(group, 1)
        own = (wide * key.double().repeat_interleave(group, 1)).sum(-1)
        shift = (wide * centres[:, :, None]).sum(-1)
        finite = torch.from_numpy(self._new)[:, None] & own.isfinite() & shift.isfinite()
        ulp = 16 * np.finfo(np.float64).eps
        room = shift - own + ulp * query.shape[3] * (shift.abs() + own.abs())
        room = room + _core.exp2_and_sum_error
        room = torch.where(finite, room, torch.inf)
        lengths = _arrays.to_numpy(wide.norm(dim=-1)) * bounds.NORM_SLACK
        count = self._blocks[0].shape[-1]
        tiles = bounds.QueryTiles(
            bounds.reduce_runs(lengths, BLOCK, np.max, 0.0),
            bounds.reduce_runs(_arrays.to_numpy(room), BLOCK, np.max, -np.inf)[None],
            **self._tiles,
        )
        greatest = norms.norms[:, :, :count, 0] * np.float32(bounds.NORM_SLACK)
        greatest = greatest + np.float32(_core.underflowed_norm)
        blocks = bounds.KeyBlocks(greatest, norms.centres, *self._blocks)
        return bounds.none_needed(tiles, blocks, self._bias, self._mask, self._share)


def merge_over_ranks(
    ranks: Ranks, output: torch.Tensor, logsumexp: torch.Tensor, negligible: list[bool]
) -> torch.Tensor:
    """Return the float32 output over the keys of all ranks that are not negligible, in rank order.

    Args:
        ranks: the processes.
        output: this rank's output, (batch, heads, queries, head_dim).
        logsumexp: this rank's logsumexp, (batch, heads, queries).
        negligible: whether the keys of each rank are negligible, the same list on all ranks.
    """
    packed = torch.cat([output.float(), logsumexp.float()[..., None]], -1)
    parts = _gather_some(ranks, packed, negligible) if any(negligible) else ranks.gather(packed)
    if not parts:  # no new token sees any key
        return torch.zeros_like(output, dtype=torch.float32)
    result, _ = merge([x[..., :-1] for x in parts], [x[..., -1].contiguous() for x in parts])
    return torch.as_tensor(result)


def _gather_some(ranks: Ranks, packed: torch.Tensor, negligible: list[bool]) -> list[torch.Tensor]:
    """Return the tensors of the ranks that are not negligible; the others send nothing."""
    count, sends = packed.numel(), [not x for x in negligible]
    others = [rank != ranks.rank for rank in range(ranks.size)]
    outgoing = [count * (sends[ranks.rank] and other) for other in others]
    incoming = [count * (sent and other) for sent, other in zip(sends, others, strict=True)]
    copies = packed.reshape(1, -1).expand(sum(x > 0 for x in outgoing), -1).reshape(-1)
    arrived = ranks.exchange(copies.contiguous(), outgoing, incoming)
    parts = [x.view_as(packed) if x.numel() else None for x in arrived.split(incoming)]
    if sends[ranks.rank]:
        parts[ranks.rank] = packed
    return [x for x in parts if x is not None]
