"""Counts what this process sends while a `Wire` is open, and the time that it takes on a link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import distributed
from torch.distributed import distributed_c10d
from torch.multiprocessing.reductions import StorageWeakRef

from ntk_alibi.fused.forward import forward
from ntk_alibi.fused.tensors import operator

#: Collectives that no way uses; a way that used one would send bytes that nobody counts.
UNCOUNTED = (
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)


@dataclass(frozen=True)
class Traffic:
    """The traffic of one process.

    Attributes:
        sent: bytes by the name of the collective.
        received: bytes.
        messages: number of messages sent to single processes.
    """

    sent: dict[str, int]
    received: int
    messages: int

    @property
    def bytes_sent(self) -> int:
        """Bytes sent by all collectives."""
        return sum(self.sent.values())

    def seconds(self, bits_per_second: float, latency: float) -> float:
        """Return the time on a link that sends and receives at once, message after message."""
        size = max(self.bytes_sent, self.received)
        return 8.0 * size / bits_per_second + self.messages * latency


class Wire:
    """Counts bytes, messages, buffers and blocks of scores of this process in a `with` block.

    Bytes count the tensors that collectives send to other processes: an all-gather sends a
    tensor to each of them, as a ring of neighbours does, too. Pickled objects count as what they
    become, two all-gathers.

    Args:
        inputs: tensors that are no buffers of the exchange.
    """

    def __init__(self, *inputs: torch.Tensor) -> None:
        self._sent: Counter[str] = Counter()
        self._received = self._messages = 0
        self._inputs = {x.untyped_storage().data_ptr() for x in inputs}
        self._buffers: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        """The most bytes that tensors of collectives had at one time."""
        self.blocks = 0
        """Number of blocks of 64 keys by a tile of queries that were scored."""

    @property
    def traffic(self) -> Traffic:
        """The traffic up to now."""
        return Traffic(dict(self._sent), self._received, self._messages)

    def __enter__(self) -> Wire:
        self._stack = ExitStack()
        counted = {
            name: getattr(self, f"_{name}")
            for name in ("all_gather", "all_to_all_single", "isend", "irecv")
        }
        refused = {name: _refuse(name) for name in UNCOUNTED}
        for module in (distributed, distributed_c10d):
            self._stack.enter_context(mock.patch.multiple(module, **counted, **refused))
        for user in (operator, import_module("ntk_alibi.fused.attention")):  # not the function
            self._stack.enter_context(mock.patch.object(user, "forward", self._forward))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _all_gather(self, every: Any, tensor: Any, *rest: Any, **options: Any) -> Any:
        others = len(every) - 1
        self._count("all_gather", others * tensor.nbytes, others)
        self._received += sum(x.nbytes for x in every) - tensor.nbytes
        self._hold(tensor, *every)
        return _ALL_GATHER(every, tensor, *rest, **options)

    def _all_to_all_single(
        self, arriving: Any, tensor: Any, got: Any = None, sent: Any = None, **options: Any
    ) -> Any:
        group = options.get("group")
        rank, size = distributed.get_rank(group), distributed.get_world_size(group)
        outgoing = sent or [len(tensor) // size] * size
        incoming = got or [len(arriving) // size] * size
        others = [n for other, n in enumerate(outgoing) if other != rank]
        row = tensor[:1].nbytes  # of an empty tensor, no row travels
        self._count("all_to_all_single", sum(others) * row, sum(n > 0 for n in others))
        self._received += (sum(incoming) - incoming[rank]) * arriving[:1].nbytes
        self._hold(arriving, tensor)
        return _ALL_TO_ALL_SINGLE(arriving, tensor, got, sent, **options)

    def _isend(self, tensor: Any, *rest: Any, **options: Any) -> Any:
        self._count("isend", tensor.nbytes, 1)
        self._hold(tensor)
        return _ISEND(tensor, *rest, **options)

    def _irecv(self, tensor: Any, *rest: Any, **options: Any) -> Any:
        self._received += tensor.nbytes
        self._hold(tensor)
        return _IRECV(tensor, *rest, **options)

    def _forward(self, *arguments: Any, **options: Any) -> Any:
        output, logsumexp, stats = forward(*arguments, **{**options, "stats": True})
        assert stats is not None
        self.blocks += int(stats.visited.sum())
        return output, logsumexp, stats

    def _count(self, name: str, size: int, messages: int) -> None:
        self._sent[name] += size
        self._messages += messages

    def _hold(self, *tensors: torch.Tensor) -> None:
        """Count the memory of tensors that a collective uses, as long as it lives."""
        self._buffers = {at: x for at, x in self._buffers.items() if not x[0].expired()}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._inputs:
                self._buffers[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._buffers.values()))


def _refuse(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} sends bytes that are not counted")

    return refuse


_ALL_GATHER = distributed.all_gather
_ALL_TO_ALL_SINGLE = distributed.all_to_all_single
_ISEND, _IRECV = distributed.isend, distributed.irecv


GIGABITS = (1, 10, 100)


def speeds_header(latency: float) -> str:
    """Return the header of cells of `tokens_per_second`."""
    rates = ", ".join(map(str, GIGABITS))
    return (
        f"computed: 1000 tokens/s that the exchange of a layer allows at {rates} Gbit/s, "
        f"{1e6 * latency:g} µs a message"
    )


def tokens_per_second(length: int, traffic: Sequence[Traffic], *, latency: float) -> str:
    """Return thousands of tokens a second at all rates; the slowest process counts.

    Args:
        length: number of tokens of all processes.
        traffic: bytes and messages of each process.
        latency: seconds that each message takes.
    """
    cells = []
    for rate in GIGABITS:
        seconds = max(x.seconds(1e9 * rate, latency) for x in traffic)
        cells.append(f"{length / seconds / 1e3:.0f}")
    return ", ".join(cells)
