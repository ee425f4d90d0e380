"""The exchange of blocks of keys and values between ranks, with gradients.

The receiver decides which blocks it needs, and the sender obeys: if both computed the decision, one
last bit that differs between two machines would give splits that do not fit, and a hang.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from ntk_alibi.distributed.ranks import Ranks


@dataclass
class Plan:
    """The blocks that travel.

    Attributes:
        ranks: the processes.
        block: number of keys in a block.
        wanted: for each rank, the blocks that this rank gets from it, bool (rows, blocks), rows
            being pairs of batch row and key head.
        given: for each rank, the blocks that it gets from this rank.
    """

    ranks: Ranks
    block: int
    wanted: list[torch.Tensor]
    given: list[torch.Tensor]
    _pending: dict[str, tuple[Any, torch.Tensor, torch.Tensor]] = field(
        default_factory=dict, init=False
    )

    @staticmethod
    def agreed(ranks: Ranks, block: int, wanted: list[NDArray[np.bool_]], own: int) -> Plan:
        """Send the wishes of this rank, and return the plan that obeys all ranks' wishes.

        Args:
            ranks: the processes.
            block: number of keys in a block.
            wanted: for each rank, the blocks that this rank wants, (batch, key heads, blocks).
            own: number of this rank's own blocks.
        """
        rows = wanted[0].shape[0] * wanted[0].shape[1]
        flat = [x.reshape(rows, -1) for x in wanted]
        asked = [np.packbits(x) for x in flat]
        others = np.arange(ranks.size) != ranks.rank
        sizes = (others * -(-rows * own // 8)).tolist()
        wishes = torch.from_numpy(np.concatenate(asked))
        heard = ranks.exchange(wishes, [len(x) for x in asked], sizes)
        bits = [np.unpackbits(x.numpy())[: rows * own] for x in heard.split(sizes)]
        bits[ranks.rank] = np.zeros(rows * own, np.uint8)
        given = [torch.from_numpy(x.reshape(rows, own).astype(np.bool_)) for x in bits]
        return Plan(ranks, block, [torch.from_numpy(x.copy()) for x in flat], given)

    @property
    def received(self) -> torch.Tensor:
        """Rank, row and block of each block that arrives, in the order of arrival."""
        places = [
            torch.cat([torch.full((len(at), 1), rank), at], dim=1)
            for rank, at in enumerate(x.nonzero() for x in self.wanted)
        ]
        return torch.cat(places)

    def begin(
        self,
        name: str,
        payload: torch.Tensor,
        outgoing: list[torch.Tensor],
        incoming: list[torch.Tensor],
    ) -> None:
        """Begin an exchange of blocks, (blocks, block, channels)."""
        sent, got = ([int(x.sum()) for x in blocks] for blocks in (outgoing, incoming))
        arriving = payload.new_empty((sum(got), *payload.shape[1:]))
        size = payload.shape[1] * payload.shape[2]
        handle = distributed.all_to_all_single(
            arriving.view(-1),
            payload.view(-1),
            [n * size for n in got],
            [n * size for n in sent],
            group=self.ranks.group,
            async_op=True,
        )
        # The payload must stay alive until the exchange ends.
        self._pending[name] = handle, arriving, payload

    def end(self, name: str) -> torch.Tensor:
        """Wait for the end of an exchange, and return the blocks that have arrived."""
        handle, arriving, _ = self._pending.pop(name)
        handle.wait()
        return arriving


class _Send(torch.autograd.Function):
    """Begin to send blocks of this rank's tokens."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, name: str, tokens: torch.Tensor) -> torch.Tensor:
        """Return a ticket for `_Arrive`, an empty tensor through which autograd goes.

        Args:
            ctx: context of autograd.
            plan: the plan.
            name: name of the exchange in the plan.
            tokens: (rows, tokens, channels).
        """
        ctx.plan, ctx.name, ctx.shape, ctx.dtype = plan, name, tokens.shape, tokens.dtype
        blocks = _in_blocks(tokens, plan.block)
        payload = torch.cat([blocks[given.to(tokens.device)] for given in plan.given])
        plan.begin(name, payload, plan.given, plan.wanted)
        return tokens.new_empty(0)

    @staticmethod
    def backward(ctx: Any, ticket: torch.Tensor) -> Any:
        plan: Plan = ctx.plan
        home = plan.end(f"{ctx.name} back")
        rows, tokens, channels = ctx.shape
        # Sums are in the order of ranks and in float32, so that every run gives the same bits.
        total = torch.zeros(
            (rows, -(-tokens // plan.block), plan.block, channels),
            dtype=torch.promote_types(ctx.dtype, torch.float32),
            device=home.device,
        )
        parts = home.split([int(given.sum()) for given in plan.given])
        for given, part in zip(plan.given, parts, strict=True):
            total[given.to(home.device)] += part
        return None, None, total.flatten(1, 2)[:, :tokens].to(ctx.dtype)


class _Arrive(torch.autograd.Function):
    """Wait until the blocks have arrived; their gradient begins to travel back."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, name: str, ticket: torch.Tensor) -> torch.Tensor:
        """Return the blocks, (blocks, block, channels)."""
        ctx.plan, ctx.name = plan, name
        return plan.end(name)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        plan: Plan = ctx.plan
        plan.begin(f"{ctx.name} back", gradient.contiguous(), plan.wanted, plan.given)
        return None, None, gradient.new_empty(0)


class _Tie(torch.autograd.Function):
    """Make an output depend on what arrived, also where nothing did.

    Every rank then takes part in the exchange of gradients. The saved tensor lets checkpointing
    repeat the forward pass here on every rank, before the exchange of gradients begins on any.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *arrived: torch.Tensor) -> torch.Tensor:
        ctx.shapes = [(x.shape, x.dtype, x.device) for x in arrived]
        ctx.save_for_backward(output.new_empty(0))
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        assert len(ctx.saved_tensors) == 1  # reading it repeats the forward pass if need be
        zeros = [torch.zeros(s, dtype=t, device=d) for s, t, d in ctx.shapes]
        return gradient, *zeros


class _SumOverRanks(torch.autograd.Function):
    """Pass a parameter on that all ranks have; its gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, parameter: torch.Tensor) -> torch.Tensor:
        ctx.ranks = ranks
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        parts = ctx.ranks.gather(gradient.double())
        return None, torch.stack(parts).sum(0).to(gradient.dtype)


class _Before(torch.autograd.Function):
    """Return the sum of the values of all ranks before this one."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, value: torch.Tensor) -> torch.Tensor:
        ctx.ranks = ranks
        parts = ranks.gather(value)[: ranks.rank]
        return torch.stack([torch.zeros_like(value), *parts]).sum(0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        parts = ctx.ranks.gather(gradient)[ctx.ranks.rank + 1 :]
        return None, torch.stack([torch.zeros_like(gradient), *parts]).sum(0)


def send(plan: Plan, name: str, tokens: torch.Tensor) -> Any:
    """Begin to send blocks; see `_Send`."""
    return _Send.apply(plan, name, tokens)  # type: ignore[no-untyped-call]


def arrive(plan: Plan, name: str, arriving: torch.Tensor) -> Any:
    """Wait for the blocks; see `_Arrive`."""
    return _Arrive.apply(plan, name, arriving)  # type: ignore[no-untyped-call]


def tie(output: torch.Tensor, *arrived: torch.Tensor) -> Any:
    """Make an output depend on what arrived; see `_Tie`."""
    return _Tie.apply(output, *arrived)  # type: ignore[no-untyped-call]


def sum_over_ranks(ranks: Ranks, parameter: torch.Tensor) -> Any:
    """Pass a parameter on whose gradient is summed over the ranks."""
    return _SumOverRanks.apply(ranks, parameter)  # type: ignore[no-untyped-call]


def before(ranks: Ranks, value: torch.Tensor) -> Any:
    """Return the sum of the values of all ranks before this one, differentiable."""
    return _Before.apply(ranks, value)  # type: ignore[no-untyped-call]


def _in_blocks(tokens: torch.Tensor, block: int) -> torch.Tensor:
    """Return (rows, blocks, block, channels); the last block is filled up with zeros."""
    rows, length, channels = tokens.shape
    count = -(-length // block)
    short = count * block - length
    if short:
        tokens = torch.nn.functional.pad(tokens, (0, 0, 0, short))
    return tokens.reshape(rows, count, block, channels)
