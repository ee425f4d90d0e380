"""What a causal query sees of its past: everything, or a window or blocks behind sinks.

Sinks are the first tokens of a text. Behind them what has left the window is taken out, and
distances count what is left, so that a sink stands directly before the window however long the text
is: what a cache of sinks and a window holds anyway (Xiao et al. 2023, arXiv 2309.17453, 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StreamingMask:
    """Which positions a query sees, and how far they are.

    Attributes:
        window: how many positions back a query sees, itself included.
        causal_block: length of blocks, of which it sees its own and the one before.
        sink: positions below this are always seen.
    """

    window: int | None = None
    causal_block: int | None = None
    sink: int = 0

    def start(self, positions: torch.Tensor) -> torch.Tensor:
        """Where window and block of queries begin; 0 or less if they have no end."""
        start = torch.zeros_like(positions)
        if self.window is not None:
            start = torch.maximum(start, positions - (self.window - 1))
        if self.causal_block is not None:
            start = torch.maximum(start, (positions // self.causal_block - 1) * self.causal_block)
        return start

    def missing(self, positions: torch.Tensor) -> torch.Tensor:
        """Positions between the sinks and what else queries see: as much nearer are the sinks."""
        return (self.start(positions) - self.sink).clamp(min=0)

    def limits(self, last: int) -> bool:
        """Whether a query at `last`, or one before it, misses anything."""
        return int(self.missing(torch.tensor(last))) > 0

    def distances(
        self, queries: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of positions (..., queries) and (..., keys): distances, and whether the key is seen."""
        missing = self.missing(queries)[..., None]
        queries, keys = queries[..., None], keys[..., None, :]
        sinks = keys < self.sink
        seen = (keys <= queries) & (sinks | (keys >= missing + self.sink))
        return queries - keys - torch.where(sinks, missing, 0), seen
