"""The ranks that share a sequence: a process group, or a one-dimensional device mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import distributed

Result = TypeVar("Result")


def attempt(make: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what a function makes, or None and its error."""
    try:
        return make(), None
    except Exception as error:
        return None, error


@dataclass(frozen=True)
class Ranks:
    """The processes that share one sequence, each with a part of it.

    Attributes:
        group: the process group.
        size: how many processes are in it.
        rank: the index of this process.
    """

    group: distributed.ProcessGroup
    size: int
    rank: int

    @staticmethod
    def from_group(group: Any) -> Ranks:
        """Return the ranks of a process group, or of a device mesh with one dimension.

        Raises:
            TypeError, ValueError: group is neither; the mesh has several dimensions; this process
                is not in it.
        """
        others: Any = distributed.GroupMember.NON_GROUP_MEMBER
        if hasattr(group, "get_group"):
            if group.ndim != 1:
                raise ValueError(
                    f"mesh must have one dimension, such as mesh['cp'], got {group.ndim} dimensions"
                )
            group = others if group.get_coordinate() is None else group.get_group()
        if group is others:
            raise ValueError("group must contain this process, got one of other processes")
        if not isinstance(group, distributed.ProcessGroup):
            raise TypeError(
                "group must be a torch.distributed.ProcessGroup or a DeviceMesh, got "
                f"{type(group).__name__}"
            )
        return Ranks(group, distributed.get_world_size(group), distributed.get_rank(group))

    def equals_group(self, group: Any) -> bool:
        """Return whether a group or a mesh consists of these processes, in this order."""
        groups = self.group, Ranks.from_group(group).group
        own, others = map(distributed.get_process_group_ranks, groups)
        return bool(own == others)

    def __deepcopy__(self, _: Any) -> Ranks:
        """Return this object, since a process group cannot be copied."""
        return self

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, in the order of ranks."""
        every: list[Any] = [None] * self.size
        distributed.all_gather_object(every, value, group=self.group)
        return every

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's tensor, in the order of ranks and on the device of `tensor`.

        All have one shape and dtype. A tensor that the group's backends cannot send, such as one on
        the CPU with NCCL, is sent from a device that they support.
        """
        config = distributed.get_backend_config(self.group)
        sent = tensor.to(supported_device(config, tensor.device)).contiguous()
        every = [torch.empty_like(sent) for _ in range(self.size)]
        distributed.all_gather(every, sent, group=self.group)
        return [x.to(tensor.device) for x in every]

    def gather_rows(self, tensor: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
        """Return every rank's tensor, where last axes differ in length.

        Args:
            tensor: this rank's tensor, (..., lengths[rank]).
            lengths: the length of each rank's last axis.
        """
        longest = max(lengths)
        padded = tensor.new_zeros((*tensor.shape[:-1], longest))
        padded[..., : tensor.shape[-1]] = tensor
        return [x[..., :n] for x, n in zip(self.gather(padded), lengths, strict=True)]

    def exchange(
        self, payload: torch.Tensor, outgoing: list[int], incoming: list[int]
    ) -> torch.Tensor:
        """Send a piece of a tensor to each rank, and return the received pieces in rank order.

        Args:
            payload: the pieces for all ranks, one after the other, with one axis.
            outgoing: the length of the piece for each rank.
            incoming: the length of the piece from each rank.
        """
        arrived = payload.new_empty(sum(incoming))
        distributed.all_to_all_single(arrived, payload, incoming, outgoing, group=self.group)
        return arrived

    def agree(self, describe: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the descriptions of all ranks, or raise the same error on all of them.

        Every rank calls this before the first exchange, so that no rank waits for one that failed.

        Args:
            describe: function that checks this rank's arguments and describes them. Values of keys
                that start with "own " may differ between ranks.

        Raises:
            TypeError, ValueError: an error of some rank, which the message names, or arguments that
                differ.
            RuntimeError: any other error of some rank.
        """
        own, cause = attempt(describe)
        if cause is not None:
            # Only built-in classes are raised on all ranks: others may need more than a message.
            kinds = (TypeError, ValueError)
            kind = next((kind for kind in kinds if isinstance(cause, kind)), RuntimeError)
            own = kind, str(cause)
        every = self.gather_objects(own)
        for rank, found in enumerate(every):
            if not isinstance(found, dict):
                kind, message = found
                raise kind(f"on rank {rank}: {message}") from (cause if rank == self.rank else None)
        for rank, found in enumerate(every):
            for name, value in every[0].items():
                other = found.get(name, "another call")
                if not name.startswith("own ") and other != value:
                    raise ValueError(
                        f"{name} must be the same on all ranks, got {value} on rank 0 and "
                        f"{other} on rank {rank}"
                    )
        return every

    def run_together(self, make: Callable[[], Result]) -> Result:
        """Return what a function makes, or raise the same error on all ranks if it fails on one.

        It costs one byte a rank.

        Args:
            make: function that communicates with no other rank.
        """
        made, error = attempt(make)

        def describe() -> dict[str, Any]:
            if error is not None:
                raise error
            return {}

        if any(bool(x) for x in self.gather(torch.tensor([error is not None]).byte())):
            self.agree(describe)
        result: Result = made
        return result


def supported_device(config: str, device: torch.device) -> torch.device:
    """Return the device itself if the backends of a group support it, or one that they support.

    Args:
        config: the backends by type of device, such as "cpu:gloo,cuda:nccl".
        device: the device of a tensor.
    """
    supported = [entry.partition(":")[0] for entry in config.split(",")]
    if device.type in supported:
        return device
    if supported[0] == "cpu":
        return torch.device("cpu")
    return torch.device(supported[0], torch.accelerator.current_device_index())
