"""The exchange of blocks of keys and values between ranks, with gradients.

The receiver alone decides which blocks it needs, and tells the sender. If both computed the
decision, one bit that differs between two machines would make them exchange different sizes, and
hang.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed
from torch.autograd.function import once_differentiable

from ntk_alibi.distributed.ranks import Ranks


@dataclass
class Plan:
    """The blocks that are exchanged.

    Attributes:
        ranks: the processes.
        block: number of keys in a block.
        incoming: for each rank, which of its blocks it sends to this rank, bool (rows, blocks); a
            row is a pair of a batch row and a key head.
        outgoing: for each rank, which of this rank's blocks it gets, bool (rows, blocks).
    """

    ranks: Ranks
    block: int
    incoming: list[torch.Tensor]
    outgoing: list[torch.Tensor]
    _pending: dict[str, tuple[Any, torch.Tensor, torch.Tensor]] = field(
        default_factory=dict, init=False
    )

    @staticmethod
    def agree(ranks: Ranks, block: int, incoming: list[NDArray[np.bool_]], own: int) -> Plan:
        """Tell each rank which of its blocks this rank needs, and return the plan of all requests.

        Args:
            ranks: the processes.
            block: number of keys in a block.
            incoming: for each rank, the blocks that this rank needs, (batch, key heads, blocks).
            own: how many blocks this rank has.
        """
        rows = incoming[0].shape[0] * incoming[0].shape[1]
        flat = [x.reshape(rows, -1) for x in incoming]
        requests = [np.packbits(x) for x in flat]
        others = np.arange(ranks.size) != ranks.rank
        sizes = (others * -(-rows * own // 8)).tolist()
        payload = torch.from_numpy(np.concatenate(requests))
        received = ranks.exchange(payload, [len(x) for x in requests], sizes)
        bits = [np.unpackbits(x.numpy())[: rows * own] for x in received.split(sizes)]
        bits[ranks.rank] = np.zeros(rows * own, np.uint8)
        outgoing = [torch.from_numpy(x.reshape(rows, own).astype(np.bool_)) for x in bits]
        return Plan(ranks, block, [torch.from_numpy(x.copy()) for x in flat], outgoing)

    @property
    def received(self) -> torch.Tensor:
        """Rank, row and block of each block that arrives, in the order of arrival."""
        indices = [
            torch.cat([torch.full((len(at), 1), rank), at], dim=1)
            for rank, at in enumerate(x.nonzero() for x in self.incoming)
        ]
        return torch.cat(indices)

    def begin(
        self,
        name: str,
        payload: torch.Tensor,
        outgoing: list[torch.Tensor],
        incoming: list[torch.Tensor],
    ) -> None:
        """Begin an exchange of blocks, (blocks, block, channels)."""
        size = payload.shape[1] * payload.shape[2]
        sent, received = ([int(x.sum()) * size for x in blocks] for blocks in (outgoing, incoming))
        arriving = payload.new_empty((sum(received) // size, *payload.shape[1:]))
        handle = distributed.all_to_all_single(
            arriving.view(-1),
            payload.view(-1),
            received,
            sent,
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
    """Begin to send blocks of this rank's tokens; the gradient waits for theirs to come back."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, name: str, tokens: torch.Tensor) -> torch.Tensor:
        """Return a ticket for `receive_blocks`, an empty tensor that connects the two in autograd.

        Args:
            ctx: context of autograd.
            plan: the plan.
            name: name of the exchange in the plan.
            tokens: (rows, tokens, channels).
        """
        ctx.plan, ctx.name, ctx.shape, ctx.dtype = plan, name, tokens.shape, tokens.dtype
        blocks = _in_blocks(tokens, plan.block)
        payload = torch.cat([blocks[outgoing.to(tokens.device)] for outgoing in plan.outgoing])
        plan.begin(name, payload, plan.outgoing, plan.incoming)
        return tokens.new_empty(0)

    @staticmethod
    @once_differentiable
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
        parts = home.split([int(outgoing.sum()) for outgoing in plan.outgoing])
        for outgoing, part in zip(plan.outgoing, parts, strict=True):
            total[outgoing.to(home.device)] += part
        return None, None, total.flatten(1, 2)[:, :tokens].to(ctx.dtype)


class _Receive(torch.autograd.Function):
    """Wait until the blocks have arrived; the backward pass begins to send their gradients back."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, name: str, ticket: torch.Tensor) -> torch.Tensor:
        """Return the blocks, (blocks, block, channels)."""
        ctx.plan, ctx.name = plan, name
        return plan.end(name)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        plan: Plan = ctx.plan
        plan.begin(f"{ctx.name} back", gradient.contiguous(), plan.incoming, plan.outgoing)
        return None, None, gradient.new_empty(0)


class _KeepInGraph(torch.autograd.Function):
    """Make an output depend on the received blocks, even where it used none of them.

    So every rank takes part in the exchange of gradients. The saved tensor makes checkpointing
    repeat the forward pass here on every rank, before any rank begins the exchange of gradients.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *arrived: torch.Tensor) -> torch.Tensor:
        ctx.shapes = [(x.shape, x.dtype, x.device) for x in arrived]
        ctx.save_for_backward(output.new_empty(0))
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        assert len(ctx.saved_tensors) == 1  # reading it makes checkpointing repeat the forward pass
        zeros = [torch.zeros(s, dtype=t, device=d) for s, t, d in ctx.shapes]
        return gradient, *zeros


class _SumGradient(torch.autograd.Function):
    """Return a parameter that all ranks have; its gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, parameter: torch.Tensor) -> torch.Tensor:
        ctx.ranks = ranks
        return parameter.view_as(parameter)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        parts = ctx.ranks.gather(gradient.double())
        return None, torch.stack(parts).sum(0).to(gradient.dtype)


class _SumBefore(torch.autograd.Function):
    """Return the sum of the values of all ranks before this one, differentiable."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, value: torch.Tensor) -> torch.Tensor:
        ctx.ranks = ranks
        parts = ranks.gather(value)[: ranks.rank]
        return torch.stack([torch.zeros_like(value), *parts]).sum(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        parts = ctx.ranks.gather(gradient)[ctx.ranks.rank + 1 :]
        return None, torch.stack([torch.zeros_like(gradient), *parts]).sum(0)


send_blocks: Any = _Send.apply
receive_blocks: Any = _Receive.apply
keep_in_graph: Any = _KeepInGraph.apply
sum_gradient_over_ranks: Any = _SumGradient.apply
sum_before: Any = _SumBefore.apply


def _in_blocks(tokens: torch.Tensor, block: int) -> torch.Tensor:
    """Return (rows, blocks, block, channels); the last block ends in zeros."""
    rows, length, channels = tokens.shape
    count = -(-length // block)
    short = count * block - length
    if short:
        tokens = torch.nn.functional.pad(tokens, (0, 0, 0, short))
    return tokens.reshape(rows, count, block, channels)
