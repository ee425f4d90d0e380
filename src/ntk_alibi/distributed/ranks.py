"""The ranks that share a sequence: a process group, or a one-dimensional device mesh."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import distributed

Result = TypeVar("Result")


class Attempt(Generic[Result]):
    """The result of a function, or its error.

    Attributes:
        error: the error, or None.
    """

    def __init__(self, make: Callable[[], Result]) -> None:
        self.error: Exception | None = None
        self._made: list[Result] = []
        try:
            self._made.append(make())
        except Exception as error:
            self.error = error

    @property
    def result(self) -> Result:
        """The result of a function that did not fail."""
        return self._made[0]


@dataclass(frozen=True)
class Ranks:
    """The processes that each hold a part of one sequence.

    Attributes:
        group: the process group.
        size: number of processes in it.
        rank: the number of this process in it.
    """

    group: distributed.ProcessGroup
    size: int
    rank: int

    @staticmethod
    def of(group: Any) -> Ranks:
        """Return the ranks of a process group, or of a device mesh with one dimension.

        Raises:
            TypeError, ValueError: group is neither; the mesh has several dimensions; this process
                is not among the ranks.
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

    def are_those_of(self, group: Any) -> bool:
        """Return whether a group or a mesh has these processes, in this order."""
        own, others = (
            distributed.get_process_group_ranks(x) for x in (self.group, Ranks.of(group).group)
        )
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
        """Return the tensors of all ranks, which have one shape and dtype, on the tensor's device.

        They travel from a device that the group's backends serve: NCCL takes no tensors of a CPU.
        """
        config = distributed.get_backend_config(self.group)
        sent = tensor.to(served_device(config, tensor.device)).contiguous()
        every = [torch.empty_like(sent) for _ in range(self.size)]
        distributed.all_gather(every, sent, group=self.group)
        return [x.to(tensor.device) for x in every]

    def gather_flags(self, flag: bool) -> list[bool]:
        """Return the flags of all ranks, one byte each."""
        return [bool(x) for x in self.gather(torch.tensor([flag], dtype=torch.uint8))]

    def gather_rows(self, tensor: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
        """Return the tensors of all ranks, which differ in the length of the last axis.

        Args:
            tensor: (..., lengths[rank]).
            lengths: the length of each rank's last axis.
        """
        longest = max(lengths)
        padded = tensor.new_zeros((*tensor.shape[:-1], longest))
        padded[..., : tensor.shape[-1]] = tensor
        return [x[..., :n] for x, n in zip(self.gather(padded), lengths, strict=True)]

    def exchange(
        self, payload: torch.Tensor, outgoing: list[int], incoming: list[int]
    ) -> torch.Tensor:
        """Return what all ranks have for this one, of one axis, in the order of ranks.

        Args:
            payload: what this rank has for each rank, one after the other.
            outgoing: how many numbers of it each rank gets.
            incoming: how many numbers each rank has for this one.
        """
        arrived = payload.new_empty(sum(incoming))
        distributed.all_to_all_single(arrived, payload, incoming, outgoing, group=self.group)
        return arrived

    def in_step(self, describe: Callable[[], dict[str, Any]]) -> None:
        """Do what `agree` does by eight bytes a rank, unless some rank fails or differs.

        Args:
            describe: as of `agree`, without values that may differ. It may be called twice.
        """
        try:
            number = zlib.crc32(repr(describe()).encode())
        except Exception:
            number = -1
        every = {int(x) for x in self.gather(torch.tensor([number], dtype=torch.int64))}
        if every == {-1} or len(every) > 1:
            self.agree(describe)

    def agree(self, describe: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the descriptions of all ranks, or raise the same error on all of them.

        Every rank calls this before the first exchange, so that no rank waits for one that failed.

        Args:
            describe: function that checks this rank's arguments and describes them. Values of keys
                that start with "own " may differ between ranks.

        Raises:
            TypeError, ValueError: an error of some rank, which it names, or arguments that differ.
            RuntimeError: any other error of some rank.
        """
        cause = None
        try:
            own: Any = describe()
        except Exception as error:
            cause, own = error, (_kind(error), str(error))
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

    def together(self, make: Callable[[], Result]) -> Result:
        """Return what a function makes, or raise the same error on all ranks if it fails on one.

        It costs one byte a rank.

        Args:
            make: function without collectives.
        """
        attempt = Attempt(make)
        if any(self.gather_flags(attempt.error is not None)):
            self.raise_error_of_any(attempt)
        return attempt.result

    def raise_error_of_any(self, attempt: Attempt[Any]) -> None:
        """Raise the same error on all ranks if an attempt failed on some; all ranks call this."""

        def describe() -> dict[str, Any]:
            if attempt.error is not None:
                raise attempt.error
            return {}

        self.agree(describe)


def served_device(config: str, device: torch.device) -> torch.device:
    """Return the device itself, if the backends of a group serve it, or else one that they serve.

    Args:
        config: the backends by type of device, such as "cpu:gloo,cuda:nccl".
        device: the device of a tensor.
    """
    served = [entry.partition(":")[0] for entry in config.split(",")]
    if device.type in served:
        return device
    kind = served[0]
    if kind == "cpu":
        return torch.device(kind)
    return torch.device(kind, torch.accelerator.current_device_index())


def _kind(error: Exception) -> type[Exception]:
    """Return the built-in class by which all ranks raise an error of one."""
    kinds: tuple[type[Exception], ...] = (TypeError, ValueError)
    return next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)
