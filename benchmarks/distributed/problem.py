"""One sequence of random tokens, of which each process makes its own part."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import ntk_alibi as na
from benchmarks.problems import dtype_name
from ntk_alibi.methods import method_name

#: Tokens that one seed gives. A sequence is the same however it is cut between them.
RUN = 1024


@dataclass(frozen=True)
class Problem:
    """Causal attention over one sequence of several processes.

    Attributes:
        length: number of tokens of all processes.
        heads: number of heads.
        head_dim: number of channels of a head.
        dtype: dtype of query, key and value.
        scaling: scaling of the slopes, or None.
    """

    length: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    scaling: na.Scaling | None = None

    @property
    def name(self) -> str:
        """Length, slopes and dtype in words."""
        return f"{tokens(self.length)}, {self.slopes}, {dtype_name(self.dtype)}"

    @property
    def slopes(self) -> str:
        """The name of the scaling."""
        return method_name(self.scaling)

    @property
    def bias(self) -> na.ALiBi:
        """Bias of all heads."""
        return na.ALiBi(self.heads, self.scaling)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys, or of its values, in all heads."""
        return self.heads * self.head_dim * self.dtype.itemsize

    def own_length(self, size: int) -> int:
        """Return the number of tokens of each of `size` processes.

        Raises:
            ValueError: the parts are no multiples of `RUN`.
        """
        if self.length < 1 or self.length % (RUN * size):
            raise ValueError(
                f"the length must be a multiple of {RUN} times the {size} processes, "
                f"got {self.length}"
            )
        return self.length // size

    def part(self, rank: int, size: int, number: int) -> torch.Tensor:
        """Return this process's part of query (0), key (1) or value (2): unit variance."""
        length = self.own_length(size)
        part = torch.empty((1, self.heads, length, self.head_dim), dtype=self.dtype)
        for begin in range(0, length, RUN):
            seed = 3 * (rank * length + begin) // RUN + number
            generator = torch.Generator().manual_seed(seed)
            run = torch.randn((1, self.heads, RUN, self.head_dim), generator=generator)
            part[:, :, begin : begin + RUN] = run
        return part

    def parts(self, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return this process's part of query, key and value."""
        query, key, value = (self.part(rank, size, number) for number in range(3))
        return query, key, value


def tokens(length: int) -> str:
    """Return a number of tokens as 8K or 1M where that is exact."""
    for unit, name in ((2**20, "M"), (2**10, "K")):
        if length % unit == 0:
            return f"{length // unit}{name}"
    return str(length)
