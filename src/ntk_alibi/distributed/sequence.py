"""One sequence on several ranks: positions, padding and bias of all its tokens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core
from ntk_alibi.biases.base import to_kernel_bias
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.distributed import bounds
from ntk_alibi.distributed.exchange import sum_before, sum_gradient_over_ranks
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.masks import Cut, Problem

#: The fewest keys of a block, and the most blocks of a sequence.
LEAST_BLOCK, MOST_BLOCKS = 64, 2048


@dataclass(frozen=True)
class Sequence:
    """This rank's queries, and the keys of all ranks.

    Attributes:
        ranks: the processes.
        lengths: how many keys each rank has.
        problem: this rank's queries with the keys of all ranks, in the order of ranks.
        has_positions: whether the caller gave positions.
    """

    ranks: Ranks
    lengths: list[int]
    problem: Problem
    has_positions: bool

    @staticmethod
    def gather(
        ranks: Ranks,
        every: list[dict[str, Any]],
        own: Problem,
        padding: NDArray[np.uint8] | None,
        positions: tuple[Any, Any],
        device: torch.device,
    ) -> Sequence:
        """Gather padding and positions from all ranks.

        Args:
            ranks: the processes.
            every: the descriptions of all ranks, from `Ranks.agree`.
            own: this rank's problem, of its keys alone.
            padding: this rank's key_padding_mask, or None.
            positions: this rank's positions of queries and keys, (1 or batch, length), or None.
            device: the device from which tensors are sent.
        """
        lengths = [x["own keys"] for x in every]
        batch, _, _, keys = own.shape
        real = None
        if any(x["own padding"] for x in every):
            mask = np.ones((batch, keys), np.uint8) if padding is None else padding
            real = _gather_joined(ranks, mask, lengths, device)
        at_queries, at_keys = positions
        if at_keys is None:
            at_keys = np.arange(sum(lengths), dtype=np.int32)[None]
            begin = sum(lengths[: ranks.rank])
            at_queries = at_keys[:, begin : begin + keys]
        else:
            at_queries = at_keys if at_queries is None else at_queries
            rows = max(x["own rows of positions"] for x in every)
            at_keys = _gather_joined(ranks, np.broadcast_to(at_keys, (rows, keys)), lengths, device)
        shape = (*own.shape[:3], sum(lengths))
        problem = Problem(shape, own.mask, real, at_queries, at_keys, explicit_positions=True)
        return Sequence(ranks, lengths, problem, positions[1] is not None)

    @property
    def own_columns(self) -> slice:
        """The columns of this rank's keys."""
        begin = sum(self.lengths[: self.ranks.rank])
        return slice(begin, begin + self.lengths[self.ranks.rank])

    @property
    def block(self) -> int:
        """The number of keys of a block, a power of two."""
        count = -(-sum(self.lengths) // MOST_BLOCKS)
        return max(LEAST_BLOCK, 1 << (count - 1).bit_length())

    def kernel_bias(self, bias: Any, like: torch.Tensor) -> KernelBias:
        """Return the kernel form of the bias for this rank's queries and the keys of all ranks.

        Prefix sums cover this rank's keys only. Gradients of what all ranks share are summed over
        the ranks.
        """
        per_token = getattr(bias, "per_token", False)
        problem = self.problem
        if per_token:
            problem = without_positions(problem.cut(Cut(keys=self.own_columns)))
        kernel = self.ranks.run_together(lambda: to_kernel_bias(bias, problem, like))
        if per_token:
            sums = kernel.sums.expand(problem.shape[0], -1, -1)
            return kernel._replace(sums=sums + sum_before(self.ranks, sums[..., -1:].contiguous()))
        if getattr(bias, "query_length", None) is not None:  # slopes of this rank's queries
            return kernel
        if _arrays.any_requires_grad(kernel.table):
            kernel = to_kernel_bias(bias, self._whole_problem(), like)
        shared = {
            name: sum_gradient_over_ranks(self.ranks, x)
            for name, x in kernel.arrays.items()
            if _arrays.any_requires_grad(x) and (name != "dense" or _same_for_all_queries(x))
        }
        return kernel._replace(**shared, core=None) if shared else kernel

    def _whole_problem(self) -> Problem:
        """Return a problem with the extreme distances of all ranks, equal on every rank."""
        own = self.problem.query_positions
        ends = self.ranks.gather_objects((int(own.min()), int(own.max())))
        least, most = min(low for low, _ in ends), max(high for _, high in ends)
        batch, heads, _, keys = self.problem.shape
        positions = np.array([[least, most]], np.int32)
        return self.problem._replace(shape=(batch, heads, 2, keys), query_positions=positions)

    def key_blocks(self, key: torch.Tensor, sums: Any) -> tuple[list[bounds.KeyBlocks], float]:
        """Return the blocks of all ranks, none for this rank, and an upper bound of all norms.

        Args:
            key: this rank's keys.
            sums: prefix sums of this rank's keys, or None.
        """
        padding = self.problem.key_padding_mask
        real = None if padding is None else padding[:, self.own_columns]
        own_norms, centres = _block_norms(key, real, self.block)
        counts = [-(-length // self.block) for length in self.lengths]
        every = self.ranks.gather_rows(own_norms, counts)
        middles = self.ranks.gather(centres)
        lengths = (
            _arrays.to_numpy(x).max(initial=0.0) + _arrays.to_numpy(z.norm(dim=-1)).max(initial=0.0)
            for x, z in zip(every, middles, strict=True)
        )
        longest = float(max(lengths)) * bounds.NORM_SLACK
        least: list[Any] = [None] * self.ranks.size
        if sums is not None:
            low = bounds.reduce_runs(_arrays.to_numpy(sums), self.block, np.min, np.inf)
            gather = self.ranks.gather_rows(torch.from_numpy(low).to(key.device), counts)
            least = [_arrays.to_numpy(x) for x in gather]
        ends = np.cumsum(self.lengths)
        found = []
        for rank, (end, length) in enumerate(zip(ends, self.lengths, strict=True)):
            if rank == self.ranks.rank:
                length = 0
            count = -(-length // self.block)
            positions = self._block_positions(slice(int(end) - length, int(end)))
            norms, centre = (_arrays.to_numpy(x[rank]) for x in (every, middles))
            least_sums = None if least[rank] is None else least[rank][..., :count]
            found.append(bounds.KeyBlocks(norms[..., :count], centre, *positions, least_sums))
        return found, longest

    def _block_positions(self, columns: slice) -> tuple[Any, Any, Any, Any]:
        positions = self.problem.key_positions[:, columns]
        real = self.problem.key_padding_mask
        shown = np.ones(positions.shape, np.bool_) if real is None else real[:, columns] > 0
        return bounds.block_positions(positions, shown, self.block)

    def query_tiles(
        self,
        query: torch.Tensor,
        factors: Any,
        lower: torch.Tensor,
        sources: list[bounds.KeyBlocks],
        longest: float,
        scale: float,
        sums: Any,
    ) -> bounds.QueryTiles:
        """Return the tiles of this rank's queries.

        Args:
            query: (batch, heads, queries, head_dim).
            factors: factors of the dot products, (1 or batch, 1 or heads, queries), or None.
            lower: lower bounds of the logsumexps, (batch, heads, queries).
            sources: the blocks of all ranks, from `key_blocks`.
            longest: an upper bound of the norms of all keys, this rank's included.
            scale: another factor of the dot products.
            sums: prefix sums of this rank's keys, or None.
        """
        size, ulp = self.block, 2.0**-24
        key_heads = sources[0].norms.shape[1]
        group = query.shape[1] // max(key_heads, 1)
        centres = torch.from_numpy(np.stack([x.centres for x in sources], -1)).to(query.device)
        greatest, room = [], []
        for head in range(query.shape[1]):  # a float64 copy of one head at a time
            wide = query[:, head].double() * scale
            if factors is not None:
                wide = wide * factors[:, head % factors.shape[1]].double()[..., None]
            norms = _arrays.to_numpy(wide.norm(dim=-1)) * bounds.NORM_SLACK
            greatest.append(bounds.reduce_runs(norms, size, np.max, 0.0))
            low = _arrays.to_numpy(lower[:, head].double())
            shift = _arrays.to_numpy((wide @ centres[:, head // group].double()).movedim(-1, 0))
            roundings = query.shape[3] + _core.extra_score_roundings
            slack = _core.exp2_and_sum_error + roundings * ulp * norms * longest
            with np.errstate(invalid="ignore"):
                left = shift - low + slack + 16 * ulp * (np.abs(shift) + np.abs(low))
            left = np.where(np.isfinite(low) & np.isfinite(left), left, np.inf)
            room.append(bounds.reduce_runs(left, size, np.max, -np.inf))
        most = None
        if sums is not None:
            most = bounds.reduce_runs(_arrays.to_numpy(sums), size, np.max, -np.inf)
        return bounds.QueryTiles(
            np.stack(greatest, 1),
            np.stack(room, 2),
            **bounds.tile_positions(self.problem.query_positions, self.problem.mask, size),
            sums=most,
        )


def without_positions(problem: Problem) -> Problem:
    """Return a problem without positions, whose last query is at its last key."""
    return problem._replace(query_positions=None, key_positions=None, explicit_positions=False)


def describe_bias(bias: Any) -> str:
    """Describe a bias in a string, which is equal on two ranks if they have the same bias.

    What belongs to single queries or tokens may differ between ranks, and is left out.
    """
    if bias is None:
        return "None"
    digest = hashlib.sha256()

    def add(values: Any) -> None:
        array = _arrays.to_numpy(values)
        digest.update(f"{array.shape}".encode())
        digest.update(array.tobytes())

    if not hasattr(bias, "per_token"):  # it is no `BiasObject`
        if not _arrays.is_array(bias):
            return type(bias).__name__
        if _same_for_all_queries(bias):
            add(bias)
        return f"an array, hash {digest.hexdigest()[:12]}"
    if not bias.per_token and bias.query_length is None:
        for parameter in bias.parameters:
            add(parameter)
    for name, value in sorted(vars(bias).items()):
        if not _arrays.is_array(value) and not name.startswith("_"):
            described = getattr(value, "__qualname__", None) if callable(value) else None
            digest.update(f"{name} {described or repr(value)}".encode())
    name, scaling = type(bias).__name__, getattr(bias, "scaling", None)
    hashed = digest.hexdigest()[:12]
    return f"{name} of {bias.num_heads} heads, scaling {scaling}, hash {hashed}"


def _same_for_all_queries(dense: Any) -> bool:
    return bool(dense.ndim < 2 or dense.shape[-2] == 1)


def _block_norms(
    key: torch.Tensor, real: NDArray[np.uint8] | None, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the centre of the real keys and each block's greatest distance from it, float32."""
    count = float(max(key.shape[2], 1))
    shown = None
    if real is not None:
        shown = torch.from_numpy(np.ascontiguousarray(real)).to(key.device).bool()[..., None]
    norms, centres = [], []
    for head in range(key.shape[1]):  # a float64 copy of one head at a time
        wide = key[:, head].detach().double()
        if shown is not None:
            wide = torch.where(shown, wide, 0.0)
        centre = (wide.sum(1) / count).nan_to_num(0.0, 0.0, 0.0).float()
        apart = wide - centre.double()[:, None]
        if shown is not None:
            apart = torch.where(shown, apart, 0.0)
        lengths = _arrays.to_numpy(apart.norm(dim=-1).nan_to_num(np.inf, np.inf))
        norms.append(bounds.reduce_runs(lengths * bounds.NORM_SLACK, block, np.max, 0.0))
        centres.append(centre)
    greatest = np.stack(norms, 1).astype(np.float32)
    return torch.from_numpy(greatest).to(key.device), torch.stack(centres, 1)


def _gather_joined(
    ranks: Ranks, array: NDArray[Any], lengths: list[int], device: torch.device
) -> NDArray[Any]:
    """Return the arrays of all ranks, joined along the last axis."""
    own = torch.from_numpy(np.array(array)).to(device)
    joined = torch.cat(ranks.gather_rows(own, lengths), dim=-1)
    return np.ascontiguousarray(_arrays.to_numpy(joined))
